//! Where two configurations differ.

/// The first line in which two texts differ, as each of them has it.
pub fn first_difference(own: &str, other: &str) -> Option<(String, String)> {
    if own == other {
        return None;
    }
    let (own, other): (Vec<&str>, Vec<&str>) = (own.lines().collect(), other.lines().collect());
    let at = (0..own.len().max(other.len())).find(|at| own.get(*at) != other.get(*at))?;
    let shown = |lines: &[&str]| lines.get(at).map_or("nothing".to_owned(), |line| format!("`{line}`"));
    Some((shown(&own), shown(&other)))
}
