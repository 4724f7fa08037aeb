//! Medians.

/// The middle of some numbers, or the mean of the two in the middle; none of nothing. Numbers that are not finite do not count.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([3.0, 1.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, f64::INFINITY, 2.0]), Some(2.0));
    }
}
