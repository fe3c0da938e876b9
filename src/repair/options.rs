//! How the log level is read.

use tracing::level_filters::LevelFilter;

use crate::log;

/// The name that upstream's filters know this program by.
const TARGET: &str = "linkerd_cni_repair_controller";

/// Reads a level (`info`), or takes from a filter such as
/// `linkerd_cni_repair_controller=info,warn` what it says about this program: the
/// longest name that fits, else the bare level, else errors only. A word that is no level
/// could be the name of another part of upstream's program, but is more likely a slip.
pub fn level(filter: &str) -> Result<LevelFilter, String> {
    let mut best: Option<(usize, LevelFilter)> = None;
    let directives = filter.split(',').map(str::trim);
    for directive in directives.filter(|directive| !directive.is_empty()) {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target, named_or_numbered(level)?),
            None if directive == TARGET => (TARGET, LevelFilter::TRACE),
            None => ("", named_or_numbered(directive)?),
        };
        // A span or field, as in `target[span{field}]=level`, is for filters alone.
        let target = target.split('[').next().unwrap_or(target);
        let better = best.is_none_or(|(length, _)| length <= target.len());
        if TARGET.starts_with(target) && better {
            best = Some((target.len(), level));
        }
    }
    Ok(best.map_or(LevelFilter::ERROR, |(_, level)| level))
}

/// Filters have numbers for the levels, too.
fn named_or_numbered(level: &str) -> Result<LevelFilter, String> {
    let numbered = ["off", "error", "warn", "info", "debug", "trace"];
    let number = level
        .parse()
        .ok()
        .and_then(|number: usize| numbered.get(number));
    log::level(number.unwrap_or(&level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_means_what_it_says_about_this_program() {
        for (filter, expected) in [
            ("info", LevelFilter::INFO),
            ("DEBUG", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
            ("linkerd_cni_repair_controller=info,warn", LevelFilter::INFO),
            (
                "warn,linkerd_cni_repair_controller=debug",
                LevelFilter::DEBUG,
            ),
            ("kube=debug, warn", LevelFilter::WARN),
            ("linkerd=trace,info", LevelFilter::TRACE),
            (
                "linkerd_cni_repair_controller[repair]=debug",
                LevelFilter::DEBUG,
            ),
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
    fn a_word_that_is_no_level_is_refused() {
        for filter in ["inof", "kube=loud,info", "6", "-1", "kube="] {
            assert!(level(filter).is_err(), "{filter:?}");
        }
    }
}
