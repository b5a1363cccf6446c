//! `canal resize`: store a view.

use crate::cli::arguments::definition::{Global, ResizeArgs};
use crate::cli::arguments::lock::{stated_view, wire_view};
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::wording::usage_error::wrong;
use crate::protocol::{Resize, Resized};
use crate::run::SUCCESS;

pub(crate) fn run(args: &ResizeArgs, global: &Global, _: Verbosity) -> Result<u8, Failed> {
    let resize = what(args)?;
    let resized = connect::client(global)?.resize(&resize).map_err(connect::failed)?;
    let text = if args.json { stdout::json(&resized)? } else { sentence(&resized) + "\n" };
    stdout::print(&text)?;
    Ok(SUCCESS)
}

fn what(args: &ResizeArgs) -> Result<Resize, Failed> {
    let Some(key) = &args.key else {
        return Err(wrong("resize", "which lock? give its KEY"));
    };
    let view = stated_view(args.per, args.buckets, args.slots)?;
    if view.is_none() && !args.forget {
        return Err(Failed::new("which size? give --per P --buckets B, --slots N or --forget")
            .hint(format!("`canal status {key}` shows the present one")));
    }
    let (per, buckets, slots) = wire_view(view);
    Ok(Resize { key: key.as_str().to_owned(), per, buckets, slots, forget: args.forget })
}

/// `db: was 3x2, is 4x2; 5 held, 2 waiting`.
fn sentence(resized: &Resized) -> String {
    let Resized { key, before, now, held, waiting } = resized;
    let shown = |view: &Option<String>| view.clone().unwrap_or_else(|| "not stored".to_owned());
    format!("{key}: was {}, is {}; {held} held, {waiting} waiting", shown(before), shown(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::lock::plain_key;

    fn args() -> ResizeArgs {
        let key = plain_key("db").ok();
        ResizeArgs { key, per: None, buckets: None, slots: None, forget: false, json: false }
    }

    #[test]
    fn a_size_is_a_view_or_to_forget_it() {
        let resize = what(&ResizeArgs { per: Some(4), buckets: Some(2), ..args() }).unwrap();
        assert_eq!((resize.per, resize.buckets, resize.slots), (Some(4), Some(2), None));
        let drained = what(&ResizeArgs { slots: Some(0), ..args() }).unwrap();
        assert_eq!((drained.slots, drained.forget), (Some(0), false));
        assert!(what(&ResizeArgs { forget: true, ..args() }).unwrap().forget);
        assert!(what(&args()).unwrap_err().message.starts_with("which size?"));
        let keyless = ResizeArgs { key: None, slots: Some(1), ..args() };
        assert!(what(&keyless).unwrap_err().message.starts_with("which lock?"));
    }

    #[test]
    fn the_report_has_the_old_and_the_new_size() {
        let mut resized = Resized {
            key: "db".to_owned(),
            before: Some("3x2".to_owned()),
            now: Some("4x2".to_owned()),
            held: 5,
            waiting: 2,
        };
        assert_eq!(sentence(&resized), "db: was 3x2, is 4x2; 5 held, 2 waiting");
        resized.now = None;
        assert_eq!(sentence(&resized), "db: was 3x2, is not stored; 5 held, 2 waiting");
    }
}
