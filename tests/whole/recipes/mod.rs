//! Runs the recipes of README.md and docs/recipes.md as they are on the page.
//!
//! Each recipe runs as root in its own namespaces, with the default places empty, as a user would
//! find them. Stand-ins replace the programs that a recipe calls, and record which locks are held
//! while they run.

mod leader;
mod page;
mod stand_ins;
mod steps;

use crate::world::World;
use crate::world::process::installed_or_skip;
use page::Recipe;
use steps::Step;

const RECIPES: &str = include_str!("../../../docs/recipes.md");
const README: &str = include_str!("../../../README.md");

/// Starts cron with a crontab, and waits until its command has run. `@reboot` means "now".
const CRON: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /var/spool/cron
mount -t tmpfs -o mode=755 tmpfs /etc/cron.d
mount --bind /dev/null /etc/crontab
mkdir -p /var/spool/cron/crontabs
chmod 1730 /var/spool/cron/crontabs
sed -E 's/^([^ ]+ +){5}/@reboot /' recipe >/var/spool/cron/crontabs/root
chmod 600 /var/spool/cron/crontabs/root
cron -f &
until_true test -s /mnt/record
kill $!
"#;

/// Makes anacron run all jobs of its table now, one after another.
const ANACRON: &str = r#"
mkdir /mnt/spool
anacron -d -f -n -s -t /mnt/work/recipe -S /mnt/spool 2>&1
"#;

/// Runs the recipe in a shell.
const SHELL: &str = "sh -eu recipe || echo FAILED\n";

/// Runs the recipe as a Makefile.
const MAKE: &str = "make -j 4 -f recipe || echo FAILED\n";

/// Runs the recipes in some languages under the headings that `here` accepts.
#[track_caller]
fn all_run(page: &str, languages: &[&str], here: impl Fn(&str) -> bool) {
    let recipes = page::recipes(page);
    let mut ran = 0;
    for recipe in recipes {
        if languages.contains(&recipe.language.as_str()) && here(&recipe.heading) {
            let Some(()) = runs(&recipe) else { return };
            ran += 1;
        }
    }
    assert_ne!(ran, 0, "no recipe in {languages:?}");
}

/// Runs a recipe. Returns `None` if this machine cannot.
#[track_caller]
fn runs(recipe: &Recipe) -> Option<()> {
    let text = &recipe.text;
    let body = match recipe.language.as_str() {
        "crontab" => CRON.to_owned(),
        "anacron" => ANACRON.to_owned(),
        "make" => MAKE.to_owned(),
        "sh" if text.contains("docker ") => format!("{DAEMON}{SHELL}"),
        "sh" if text.contains("--on ") => format!("{NODES}{SHELL}"),
        "sh" if text.contains("GITHUB_ENV") => in_steps(text.lines().map(Step::plain)),
        "sh" => SHELL.to_owned(),
        "yaml" => in_steps(steps::of_yaml(text)),
        "groovy" => in_steps(steps::of_jenkins(text)),
        "ini" => in_steps(steps::of_unit(text)),
        other => panic!("nobody knows how to run {other}"),
    };
    let world = World::new();
    let prepare = stand_ins::prepare(text);
    let script = format!(
        "{prepare}export BRANCH=main\ncat >recipe <<'END OF RECIPE'\n{text}END OF RECIPE\n{body}echo RECORD\ncat /mnt/record\n"
    );
    let ended = crate::namespace::privately(&world, &script)?;
    let (output, record) = ended.stdout.split_once("RECORD\n").unwrap_or((&ended.stdout, ""));
    let well = ended.code == Some(0) && !output.contains("FAILED");
    assert!(well, "{text}\nended so: {ended:?}");
    let complaint = ended.stderr.lines().find(|line| line.starts_with("canal: "));
    assert_eq!(complaint, None, "canal complained in:\n{text}");
    stand_ins::check(&text.replace("$BRANCH", "main"), record);
    Some(())
}

/// Starts the machine-wide daemon, as its service does.
const DAEMON: &str = r#"
mkdir /run/canal
canal daemon --socket /run/canal/canal.sock &
until_true test -S /run/canal/canal.sock
"#;

/// Starts the daemons of three machines, whose state outlives a reboot, and waits until they grant:
/// a node with a new state knows no leases and waits for the longest TTL. The stand-ins of programs
/// query a node that holds the lock.
const NODES: &str = r#"
mkdir -p "$home/.config/canal" && echo '[nodes]' >"$home/.config/canal/canal.toml"
for name in web1 web2 web3; do
    place=/mnt/lasting/$name
    mkdir -m 700 $place
    printf '[nodes]\nlongest_ttl = "10s"\n' >$place/canal.toml
    canal daemon --socket $place/canal.sock &
    until_true test -S $place/canal.sock
    echo "$name = \"unix:$place/canal.sock\"" >>"$home/.config/canal/canal.toml"
done
canal run -q --on web1,web2,web3 --ttl 10s -k ready -- true
for name in web1 web2 web3; do
    : >/mnt/lasting/$name/canal.toml
    CANAL_SOCKET=/mnt/lasting/$name/canal.sock canal daemon --reload >/dev/null 2>/mnt/reloaded
done
sed -i 's|^printf|export CANAL_SOCKET=/mnt/lasting/${CANAL_NODES%%,*}/canal.sock\nprintf|' /mnt/stand-in
"#;

/// Runs the steps of a CI run one after another. Each step gets the variables that earlier ones put
/// into the file named by `GITHUB_ENV`. At the end, each action gets what it put into the file
/// named by `GITHUB_STATE`.
fn in_steps(steps: impl IntoIterator<Item = Step>) -> String {
    let mut script = "export GITHUB_ENV=/mnt/github-env GITHUB_OUTPUT=/mnt/github-output\n\
                      touch $GITHUB_ENV\n"
        .to_owned();
    let mut posts = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        script += &format!("cat >step{number} <<'END OF STEP'\n{}\nEND OF STEP\n", step.script);
        script +=
            &format!("(set -a; . $GITHUB_ENV; set +a; export GITHUB_STATE=/mnt/state{number}\n");
        for (name, value) in step.variables {
            script += &format!("export {name}='{}'\n", value.replace('\'', r"'\''"));
        }
        script += &format!("bash -e step{number}) || echo FAILED\n");
        posts.extend(step.post.map(|post| (number, post)));
    }
    for (number, post) in posts.into_iter().rev() {
        script += &format!("cat >post{number} <<'END OF STEP'\n{post}\nEND OF STEP\n");
        script += &format!("touch /mnt/state{number}; sed -i s/^/STATE_/ /mnt/state{number}\n");
        script += &format!("(set -a; . /mnt/state{number}; bash -e post{number}) || echo FAILED\n");
    }
    script + "canal status --no-start --json | grep -q '\"token\"' && echo FAILED: a lock is left\n"
}

#[test]
fn crontabs() {
    if installed_or_skip("cron", "recipes of cron") {
        all_run(RECIPES, &["crontab"], |_| true);
        all_run(README, &["crontab"], |_| true);
    }
}

#[test]
fn anacrontabs() {
    if installed_or_skip("anacron", "recipes of anacron") {
        all_run(RECIPES, &["anacron"], |_| true);
    }
}

#[test]
fn makefiles() {
    if installed_or_skip("make", "recipes of make") {
        all_run(RECIPES, &["make"], |_| true);
    }
}

#[test]
fn services() {
    all_run(RECIPES, &["ini"], |_| true);
}

#[test]
fn ci_servers() {
    if installed_or_skip("node", "recipes of CI servers") {
        all_run(RECIPES, &["yaml", "groovy"], |_| true);
    }
}

#[test]
fn shell_commands() {
    all_run(RECIPES, &["sh"], |heading| !heading.starts_with("Instead"));
}

#[test]
fn what_to_write_instead() {
    all_run(RECIPES, &["sh"], |heading| heading.starts_with("Instead"));
}

#[test]
fn recipes_of_the_readme() {
    all_run(README, &["sh"], |heading| heading == "Six commands");
}

#[test]
fn every_recipe_is_run_by_a_test() {
    let known = ["sh", "crontab", "anacron", "make", "ini", "yaml", "groovy"];
    for recipe in page::recipes(RECIPES) {
        assert!(known.contains(&recipe.language.as_str()), "{recipe:?}");
    }
}
