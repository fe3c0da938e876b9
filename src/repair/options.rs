//! How the log level is read.

use tracing::level_filters::LevelFilter;

use crate::log;

/// The name that upstream's filters know this program by.
const TARGET: &str = "linkerd_cni_repair_controller";

/// Reads a level (`info`), or takes from a filter such as
/// `linkerd_cni_repair_controller=info,warn` what it says about this program: the
/// longest name that fits, else the bare level, else errors only.
pub fn level(filter: &str) -> Result<LevelFilter, String> {
    let mut best: Option<(usize, LevelFilter)> = None;
    for directive in filter.split(',').map(str::trim) {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target, log::level(level)?),
            None if directive == TARGET => (TARGET, LevelFilter::TRACE),
            None => ("", log::level(directive)?),
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
        ] {
            assert_eq!(level(filter), Ok(expected), "{filter}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for filter in ["", "inof", "kube=loud,info", "info,,warn"] {
            assert!(level(filter).is_err(), "{filter:?}");
        }
    }
}
