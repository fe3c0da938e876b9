//! Parses the controller's log level: a level, or a tracing filter as upstream's controller
//! accepts it.

use tracing::level_filters::LevelFilter;

use crate::log;

/// Name of this program in filters. Upstream's name.
const TARGET: &str = "linkerd_cni_repair_controller";

/// Parses a level (`info`) or a filter (`linkerd_cni_repair_controller=info,warn`).
///
/// From a filter, returns the level for [`TARGET`]: that of the longest matching prefix, else
/// the bare level, else `error`. An unknown word is an error: it could name a module of
/// upstream's controller, but is more likely a misspelt level.
pub fn level(filter: &str) -> Result<LevelFilter, String> {
    let mut longest_match: Option<(usize, LevelFilter)> = None;
    let directives = filter.split(',').map(str::trim);
    for directive in directives.filter(|directive| !directive.is_empty()) {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target, log::level(level)?),
            None if directive == TARGET => (TARGET, LevelFilter::TRACE),
            None => ("", log::level(directive)?),
        };
        // Ignore a span or field, as in `target[span{field}]=level`.
        let target = target.split('[').next().unwrap_or(target);
        let is_longer = longest_match.is_none_or(|(length, _)| length <= target.len());
        if TARGET.starts_with(target) && is_longer {
            longest_match = Some((target.len(), level));
        }
    }
    Ok(longest_match.map_or(LevelFilter::ERROR, |(_, level)| level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_for_this_program_sets_the_level() {
        for (filter, expected) in [
            ("info", LevelFilter::INFO),
            ("DEBUG", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
            ("linkerd_cni_repair_controller=info,warn", LevelFilter::INFO),
            ("warn,linkerd_cni_repair_controller=debug", LevelFilter::DEBUG),
            ("kube=debug, warn", LevelFilter::WARN),
            ("linkerd=trace,info", LevelFilter::TRACE),
            ("linkerd_cni_repair_controller[repair]=debug", LevelFilter::DEBUG),
            ("linkerd_cni_repair_controller", LevelFilter::TRACE),
            ("kube=debug", LevelFilter::ERROR),
            ("", LevelFilter::ERROR),
            ("info,,kube=warn,", LevelFilter::INFO),
            ("4", LevelFilter::DEBUG),
            ("linkerd_cni_repair_controller=2,5", LevelFilter::WARN),
        ] {
            assert_eq!(level(filter), Ok(expected), "{filter}");
        }
    }

    #[test]
    fn an_unknown_level_is_an_error() {
        for filter in ["inof", "kube=loud,info", "6", "-1", "kube="] {
            assert!(level(filter).is_err(), "{filter:?}");
        }
    }
}
