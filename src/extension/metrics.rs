//! Reads samples of the OpenMetrics text of the agent. Pure.

/// One sample: the value of the asked label, and the number.
pub type Sample<'t> = (&'t str, f64);

/// Larger numbers are no counts.
const LARGEST: f64 = 1e15;
/// Code of failures that do not count: the pod was deleted while it started.
const NOT_COUNTED: &str = "103";

/// Returns the failed plugin calls by error code.
pub fn failures(text: &str) -> Vec<Sample<'_>> {
    let mut all = samples(text, "linkerd_cni_plugin_failures_total", "code");
    all.retain(|sample| sample.0 != NOT_COUNTED);
    all
}

/// Returns the sample of metric `name`, which has no labels, if it is above zero.
pub fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| number(line.strip_prefix(name)?.strip_prefix(' ')?))
}

/// Returns the samples of metric `name` above zero, each with the value of its label `label`. Leaves
/// out values that no agent reports: a program in the agent's place may report any text.
pub fn samples<'t>(text: &'t str, name: &str, label: &str) -> Vec<Sample<'t>> {
    let of_line = |line: &'t str| {
        let rest = line.strip_prefix(name)?.strip_prefix('{')?;
        let (labels, number_text) = rest.rsplit_once("} ")?;
        let (_, value) = labels.split_once(&format!("{label}=\""))?;
        let (value, _) = value.split_once('"')?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        value.chars().all(is_plain).then_some((value, number(number_text)?))
    };
    text.lines().filter_map(of_line).collect()
}

/// Reads the number of a sample, which a timestamp may follow.
fn number(text: &str) -> Option<f64> {
    let number: f64 = text.split(' ').next()?.parse().ok()?;
    (number > 0.0 && number < LARGEST).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_above_zero_are_read_with_their_label() {
        let text = "# TYPE a counter\na_total{backend=\"native\"} 3\na_total{backend=\"nft\"} 0\n\
                    a_total{x=\"1\",backend=\"legacy\"} 2 1.5\nab_total{backend=\"plain\"} 1\n# EOF\n";
        assert_eq!(samples(text, "a_total", "backend"), [("native", 3.0), ("legacy", 2.0)]);
        assert_eq!(samples(text, "b_total", "backend"), []);
        let plain = "a_total 3\nb_total 0\nc_totals 2\nd_total{x=\"1\"} 1\n";
        let found = ["a_total", "b_total", "c_total", "d_total"].map(|name| sample(plain, name));
        assert_eq!(found, [Some(3.0), None, None, None]);
    }

    #[test]
    fn values_that_no_agent_reports_are_left_out() {
        for value in ["\u{1b}[2J", "\u{202e}x", "a b", "é"] {
            let text = format!("a_total{{backend=\"{value}\"}} 3\n");
            assert_eq!(samples(&text, "a_total", "backend"), [], "{value:?}");
        }
        for number in ["inf", "nan", "-1", "1e300"] {
            let text = format!("a_total{{backend=\"native\"}} {number}\n");
            assert_eq!(samples(&text, "a_total", "backend"), [], "{number}");
        }
    }

    #[test]
    fn a_pod_that_was_deleted_while_it_started_is_no_failure() {
        assert_eq!(NOT_COUNTED, crate::failure::Failure::PodNotFound.code().to_string());
        let line = |code| format!("linkerd_cni_plugin_failures_total{{code=\"{code}\"}} 2\n");
        assert_eq!(failures(&(line(103) + &line(101))), [("101", 2.0)]);
    }
}
