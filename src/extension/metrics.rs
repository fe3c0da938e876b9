//! Reads samples of the OpenMetrics text of the agent. Pure.

/// One sample: the value of the asked label, and the number.
pub type Sample<'t> = (&'t str, f64);

/// Returns the samples of metric `name` above zero, each with the value of its label `label`.
pub fn samples<'t>(text: &'t str, name: &str, label: &str) -> Vec<Sample<'t>> {
    let of_line = |line: &'t str| {
        let rest = line.strip_prefix(name)?.strip_prefix('{')?;
        let (labels, number) = rest.rsplit_once("} ")?;
        let (_, value) = labels.split_once(&format!("{label}=\""))?;
        let (value, _) = value.split_once('"')?;
        let number: f64 = number.split(' ').next()?.parse().ok()?;
        (number > 0.0).then_some((value, number))
    };
    text.lines().filter_map(of_line).collect()
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
    }
}
