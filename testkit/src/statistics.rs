//! Medians and percentiles.

/// The smallest value that is not exceeded by `percent` of the values. The default of no values.
pub fn percentile<T: Copy + Ord + Default>(values: &mut [T], percent: usize) -> T {
    values.sort_unstable();
    let index = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(index).copied().unwrap_or_default()
}

/// The middle value, the upper one of two. The default of no values.
pub fn median<T: Copy + Ord + Default>(values: &mut [T]) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
