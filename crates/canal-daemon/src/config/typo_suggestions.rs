//! Suggests the word that the author of a configuration may have meant.

/// Replaces the list in "unknown field `x`, expected `a` or `b`" with the most similar name.
pub(super) fn with_suggestion(message: &str) -> String {
    let first = message.lines().next().unwrap_or(message);
    // For the author of the file, what serde calls a variant is a word in a list.
    let first = first.replacen("unknown variant", "unknown word", 1);
    // Names of Rust's number types mean nothing to the author of the file.
    let number = first.split_once(", expected ").and_then(|(value, type_of)| match type_of {
        "u8" | "u32" | "u64" | "usize" => Some((value, 0)),
        "a nonzero usize" => Some((value, 1)),
        _ => None,
    });
    if let Some((value, least)) = number {
        return format!("{value}, expected a whole number of at least {least}");
    }
    let kind = ["unknown field", "unknown word"].into_iter().find(|kind| first.starts_with(kind));
    let mut names = first.split('`').skip(1).step_by(2);
    let (Some(kind), Some(unknown)) = (kind, names.next()) else { return first };
    let near = names.filter(|name| strsim::jaro_winkler(unknown, name) > 0.7);
    // By this similarity a short word resembles every long word that begins like it, so the name
    // with the fewest changes is chosen.
    let nearest = near.min_by_key(|name| strsim::osa_distance(unknown, name));
    match nearest {
        Some(name) => format!("{kind} `{unknown}`; did you mean `{name}`?"),
        None => first,
    }
}
