//! Finds the known name that a misspelt one was meant to be.

/// The known name closest to `name`, if one is close enough to be meant.
///
/// Case, and `-` for `_`, cost nothing.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let fold = |text: &str| text.to_lowercase().replace('-', "_");
    let name = fold(name);
    known
        .into_iter()
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&name, &fold(candidate));
            (distance, candidate)
        })
        .filter(|(distance, candidate)| *distance <= tolerance(candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean …?`, or nothing where no known name is close.
pub(crate) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or(String::new(), |known| format!("; did you mean `{known}`?"))
}

/// How many edits away a name may be: a third of its length, and one for short names.
fn tolerance(candidate: &str) -> usize {
    (candidate.chars().count() / 3).max(1)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("polcy", Some("policy"))]
    #[case("POLICY", Some("policy"))]
    #[case("plicoy", Some("policy"))]
    #[case("on-miss", Some("on_miss"))]
    #[case("onmiss", Some("on_miss"))]
    #[case("caps", Some("cap"))]
    #[case("colour", None)]
    #[case("", None)]
    fn names_what_was_meant(#[case] name: &str, #[case] expected: Option<&str>) {
        assert_eq!(nearest(name, ["policy", "cap", "on_miss"]), expected);
    }
}
