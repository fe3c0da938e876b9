//! Rules that are there, compared with those that should be, in order.

use crate::rules::Chain;

/// How many of the rules that are `left` of a chain come before the next one that is
/// `wanted`. In our own chains there may be none: what somebody put before ours would
/// decide instead of it.
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
