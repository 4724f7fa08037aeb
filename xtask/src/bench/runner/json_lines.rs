//! The JSON lines that both sides print or record.

use serde_json::Value;

/// The JSON objects among other output, one a line.
pub fn objects(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line.trim()).ok()).filter(Value::is_object).collect()
}

/// One field of all lines that have it as a number.
pub fn numbers(lines: &[Value], field: &str) -> Vec<f64> {
    lines.iter().filter_map(|line| line[field].as_f64()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCHRUN: &str = r#"W1120 23:41:07 torch/distributed/run.py: setting OMP_NUM_THREADS
{"mode": "ddp", "world": 2, "step": 0, "seconds": 1.9, "tokens_per_second": 1077.9, "peak_rss_mib": 610}
{"mode": "ddp", "world": 2, "step": 1, "seconds": 0.9, "tokens_per_second": 2275.6, "peak_rss_mib": 640}
[rank0]: a warning {"not": "a line of its own"}
{"mode": "ddp", "world": 2, "step": 2, "seconds": 0.8, "tokens_per_second": 2560.0, "peak_rss_mib": 640}
{"mode": "ddp", "world": 2, "step": 3, "seconds": 0.82, "tokens_per_second": 2497.6, "peak_rss_mib": 640}
17
"#;

    #[test]
    fn figures_are_found_among_other_output() {
        let lines = objects(TORCHRUN);
        assert_eq!(lines.len(), 4);
        let rates = numbers(&lines, "tokens_per_second");
        assert_eq!(rates, [1077.9, 2275.6, 2560.0, 2497.6]);
    }

    #[test]
    fn what_is_no_figure_is_left_out() {
        assert!(numbers(&objects(r#"{"loss":null,"step":1}"#), "loss").is_empty());
        assert!(objects("{\"cut\": ").is_empty());
    }
}
