//! Medians and percentiles.

/// Returns the smallest value that is not exceeded by `percent` of the values. Without values,
/// returns the type's default.
pub fn percentile<T: Copy + Ord + Default>(values: &mut [T], percent: usize) -> T {
    values.sort_unstable();
    let index = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(index).copied().unwrap_or_default()
}

/// Returns the middle value, or the larger one of the two middle values. Without values, returns
/// the type's default.
pub fn median<T: Copy + Ord + Default>(values: &mut [T]) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
