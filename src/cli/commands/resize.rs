//! `canal resize`: stores the size of a key, pauses or resumes it, and takes parts of it out of
//! service.

use itertools::Itertools as _;

use crate::cli::arguments::keys_and_sizes::stated_size;
use crate::cli::wording::usage_error::with_its_size;
use crate::cli::{Failed, Global, ResizeArgs, Result, Target, stdout, wrong};
use crate::protocol::{Resize, Resized};

pub(crate) fn run(args: &ResizeArgs, global: &Global) -> Result {
    let resize = what(args)?;
    let resized = Target::of(global)?.connect()?.resize(&resize)?;
    stdout::report(&resized, args.json, || told(&resize, &resized) + "\n")
}

fn what(args: &ResizeArgs) -> Result<Resize> {
    let Some(key) = &args.key else {
        return Err(wrong("resize", "no lock given; give its KEY"));
    };
    let (per, buckets, slots) = stated_size((args.per, args.buckets, args.slots))?;
    let pause = (args.pause || args.resume).then_some(args.pause);
    let numbers = |numbers: &[u64]| (!numbers.is_empty()).then(|| numbers.to_vec());
    let (without, with) = (numbers(&args.without), numbers(&args.with));
    let is_other = args.forget || pause.is_some() || without.is_some() || with.is_some();
    if per.or(slots).is_none() && !is_other {
        let shown = || format!("run `canal status {key}` to see the current size");
        return Err(Failed::new(
            "no size given; give --per P --buckets B, --slots N, --forget, --pause, --resume, \
             --without N or --with N",
        )
        .hint(with_its_size(key.as_str()).unwrap_or_else(shown)));
    }
    let (key, forget) = (key.as_str().to_owned(), args.forget);
    Ok(Resize { key, per, buckets, slots, forget, pause, without, with })
}

/// The message about what was done.
pub(super) fn told(asked: &Resize, resized: &Resized) -> String {
    if asked.without.is_some() || asked.with.is_some() {
        let Resized { key, held, waiting, .. } = resized;
        let numbers = resized.without.iter().join(", ");
        let out = if numbers.is_empty() { "nothing" } else { &numbers };
        return format!("{key}: {out} out of service; {held} held, {waiting} waiting");
    }
    sentence(resized, asked.pause.is_none() && asked.slots != Some(0))
}

/// `db: size 4x2 (previously 3x2); 5 held, 2 waiting`. `sized` means that a size was changed.
fn sentence(resized: &Resized, sized: bool) -> String {
    let Resized { key, before, now, paused, held, waiting, .. } = resized;
    let shown = |view: &Option<String>| view.clone().unwrap_or_else(|| "not stored".to_owned());
    let changed = format!("size {} (previously {})", shown(now), shown(before));
    let rest = format!("{held} held, {waiting} waiting");
    let resume = format!("resume it with `canal resize {key} --resume`");
    match (sized, paused) {
        (false, true) => format!("{key}: paused; {rest}; {resume}"),
        (false, false) => format!("{key}: not paused; {rest}"),
        (true, false) => format!("{key}: {changed}; {rest}"),
        (true, true) => format!("{key}: {changed}; still paused; {rest}; {resume}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::keys_and_sizes::plain_key;

    fn args() -> ResizeArgs {
        let key = plain_key("db").ok();
        let (per, buckets, slots) = (None, None, None);
        let (forget, pause, resume, json) = (false, false, false, false);
        let (without, with) = Default::default();
        ResizeArgs { key, per, buckets, slots, forget, pause, resume, without, with, json }
    }

    #[test]
    fn a_size_is_a_view_or_to_forget_it() {
        let resize = what(&ResizeArgs { per: Some(4), buckets: Some(2), ..args() }).unwrap();
        assert_eq!((resize.per, resize.buckets, resize.slots), (Some(4), Some(2), None));
        assert_eq!(resize.pause, None);
        let none = what(&ResizeArgs { slots: Some(0), ..args() }).unwrap();
        assert_eq!((none.slots, none.forget, none.pause), (Some(0), false, None));
        assert!(what(&ResizeArgs { forget: true, ..args() }).unwrap().forget);
        assert!(what(&args()).unwrap_err().message.starts_with("no size given"));
        let keyless = ResizeArgs { key: None, slots: Some(1), ..args() };
        assert!(what(&keyless).unwrap_err().message.starts_with("no lock given"));
    }

    #[test]
    fn a_pause_is_no_size() {
        let pause = what(&ResizeArgs { pause: true, ..args() }).unwrap();
        assert_eq!((pause.pause, pause.slots, pause.forget), (Some(true), None, false));
        let resume = what(&ResizeArgs { resume: true, ..args() }).unwrap();
        assert_eq!(resume.pause, Some(false));
    }

    #[test]
    fn the_report_has_the_old_and_the_new_size() {
        let mut resized = Resized {
            key: "db".to_owned(),
            before: Some("3x2".to_owned()),
            now: Some("4x2".to_owned()),
            paused: false,
            without: Vec::new(),
            held: 5,
            waiting: 2,
        };
        assert_eq!(sentence(&resized, true), "db: size 4x2 (previously 3x2); 5 held, 2 waiting");
        assert_eq!(sentence(&resized, false), "db: not paused; 5 held, 2 waiting");
        resized.now = None;
        assert_eq!(
            sentence(&resized, true),
            "db: size not stored (previously 3x2); 5 held, 2 waiting"
        );
        resized.paused = true;
        let service = Resize { with: Some(vec![4]), ..Resize::default() };
        resized.without = vec![2, 3];
        let some = "db: 2, 3 out of service; 5 held, 2 waiting";
        assert_eq!(told(&service, &resized), some);
        resized.without.clear();
        assert_eq!(told(&service, &resized), "db: nothing out of service; 5 held, 2 waiting");
        let rest = "5 held, 2 waiting; resume it with `canal resize db --resume`";
        assert_eq!(sentence(&resized, false), format!("db: paused; {rest}"));
        assert_eq!(
            sentence(&resized, true),
            format!("db: size not stored (previously 3x2); still paused; {rest}")
        );
    }
}
