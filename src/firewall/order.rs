//! Compares listed rules with the expected ones, in order.

use crate::rules::Chain;

/// Finds the next `wanted` rule among the rules `left` of a chain; returns its index. In the chains
/// of Linkerd it must come first, as a foreign rule before it could decide instead. Other chains may
/// have foreign rules anywhere.
pub fn next<T>(
    chain: Chain,
    mut left: impl Iterator<Item = T>,
    wanted: impl Fn(&T) -> bool,
) -> Option<usize> {
    if Chain::OURS.contains(&chain) {
        left.next().filter(wanted).map(|_| 0)
    } else {
        left.position(|rule| wanted(&rule))
    }
}
