//! Stand-ins for the programs that recipes call and no machine has (`./deploy.sh`). Each records
//! which locks are held while it runs.

use std::collections::BTreeSet;

use serde_json::Value;

/// Sets the folder of a recipe, and the file of its stand-ins' records.
const PREPARE: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /usr/local/bin
ln -s /mnt/canal /usr/local/bin/canal
mkdir /mnt/work /mnt/bin
cd /mnt/work
export PATH="/mnt/bin:$PATH"
cat >/mnt/stand-in <<'END'
#!/bin/sh
printf '%s %s\n' "${0##*/}" "$(/usr/local/bin/canal status --json)" >>/mnt/record
END
printf '#!/bin/sh\nprintf "a\nb\n"\n' >/mnt/bin/backends
printf '#!/bin/sh\nshift\nexec sh -c "$*"\n' >/mnt/bin/ssh
cat >/mnt/bin/docker <<'END'
#!/bin/sh
# docker run --rm -v FOLDER:THERE[:ro]… IMAGE COMMAND…: other namespaces, the same files.
shift 2
while [ "$1" = -v ]; do shift 2; done
shift
exec unshare -m -p -f --mount-proc "$@"
END
chmod +x /mnt/stand-in /mnt/bin/*
printf 'web1\nweb2\nweb3\n' >hosts.txt
touch /mnt/record
"#;

/// Programs that recipes call without a folder.
const KNOWN: [&str; 1] = ["rsync-all"];

/// The script that creates the stand-ins for all programs in a recipe.
pub(crate) fn prepare(text: &str) -> String {
    let mut script = PREPARE.to_owned();
    for program in programs(text) {
        let place = match program.strip_prefix("./") {
            Some(name) => format!("/mnt/work/{name}"),
            None if program.starts_with('/') => program,
            None => format!("/mnt/bin/{program}"),
        };
        script += &format!("ln -s /mnt/stand-in {place}\n");
    }
    script
}

/// The programs in a text that need a stand-in, as the text calls them.
fn programs(text: &str) -> BTreeSet<String> {
    words(text)
        .filter(|word| {
            let local = word.strip_prefix("/usr/local/bin/").is_some_and(|name| name != "canal");
            let script = word.strip_prefix("./").is_some_and(|name| !name.contains('/'));
            local || script
        })
        .chain(words(text).skip(1).filter(|word| KNOWN.contains(word)))
        .map(str::to_owned)
        .collect()
}

/// The keys that a recipe names.
fn keys(text: &str) -> BTreeSet<&str> {
    let words: Vec<&str> = words(text).collect();
    let named = words.windows(2).filter(|pair| {
        matches!(pair[0], "-k" | "--key" | "--key-literal" | "--read" | "--write" | "key")
    });
    named.map(|pair| pair[1]).collect()
}

/// The words of a text, without the surrounding characters of the shell and other languages.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let within = |c: char| c.is_ascii_alphanumeric() || "./-_".contains(c);
    text.split(move |c| !within(c)).filter(|word| !word.is_empty())
}

/// Checks a record of stand-ins: all programs of the recipe ran, and only while keys of the recipe
/// were held.
#[track_caller]
pub(crate) fn check(text: &str, record: &str) {
    let named = keys(text);
    let mut ran = BTreeSet::new();
    for line in record.lines() {
        let (name, status) = line.split_once(' ').unwrap();
        let status: Value = serde_json::from_str(status).unwrap();
        let held: Vec<&str> = status["keys"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|key| key["holders"].as_array().is_some_and(|holders| !holders.is_empty()))
            .map(|key| key["key"].as_str().unwrap())
            .collect();
        assert!(!held.is_empty(), "{name} ran without a lock in:\n{text}");
        assert!(held.iter().all(|key| named.contains(key)), "{held:?} were held in:\n{text}");
        ran.insert(name);
    }
    for program in programs(text) {
        let name = program.rsplit('/').next().unwrap();
        assert!(ran.contains(name), "{name} did not run in:\n{text}");
    }
}

#[test]
fn programs_and_keys_are_found_in_recipes() {
    let text = "*/5 * * * *  /usr/local/bin/canal run -k a/b -c 'X=$Y ./train.sh' -- /usr/local/bin/x-y\n\
                uses: ./contrib/github-action\nkey: c\n";
    assert_eq!(programs(text), ["./train.sh", "/usr/local/bin/x-y"].map(str::to_owned).into());
    assert_eq!(keys(text), ["a/b", "c"].into());
}

#[test]
#[should_panic(expected = "ran without a lock")]
fn a_program_that_runs_without_a_lock_is_found() {
    check("./job.sh", "job.sh {\"keys\":[{\"key\":\"a\",\"holders\":[]}]}\n");
}

#[test]
#[should_panic(expected = "did not run")]
fn a_program_that_does_not_run_is_found() {
    check("./job.sh", "");
}
