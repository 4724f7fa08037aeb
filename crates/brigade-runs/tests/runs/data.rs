//! What a page draws is what `metrics.jsonl` says.

use std::fs;
use std::path::Path;

use brigade_runs::{PAGE_MARKER, Run, page};
use serde_json::Value;

use crate::made;

/// The numbers in a page.
pub fn data(html: &str) -> Value {
    let begin = r#"<script type="application/json" id="data">"#;
    let text = html.split_once(begin).unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(text).unwrap()
}

/// The lines of a run's metrics, read as anyone would.
fn lines(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Where the numbers of each series are in a line, and what is there for a line that has none.
const FIELDS: [(&str, &str, &str); 18] = [
    ("loss", "loss", "/loss"),
    ("loss", "validation", "/validation_loss"),
    ("metric-0", "accuracy", "/metrics/accuracy"),
    ("learning-rate", "learning rate", "/learning_rate"),
    ("gradient-norm", "gradient norm", "/grad_norm"),
    ("throughput", "tokens/s", "/tokens_per_second"),
    ("mfu", "MFU", "/mfu_percent"),
    ("time", "forward", "/forward_seconds"),
    ("time", "backward", "/backward_seconds"),
    ("time", "optimizer", "/optimizer_seconds"),
    ("time", "waiting for data", "/data_wait_seconds"),
    ("time", "waiting: all_reduce", "/comm_wait_seconds_by/all_reduce"),
    ("communication", "exposed", "/comm_wait_seconds"),
    ("communication", "hidden", "/comm_hidden_seconds"),
    ("memory", "parameters", "/parameter_bytes_peak"),
    ("memory", "optimizer", "/optimizer_bytes_peak"),
    ("memory", "whole process", "/peak_rss_bytes"),
    ("traffic", "all_reduce", "/collectives/all_reduce/bytes"),
];

#[test]
fn every_series_has_the_numbers_of_metrics_jsonl() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 40);
    let run = Run::read(folder.path()).unwrap();
    let (data, lines) = (data(&page(&run, None).unwrap()), lines(folder.path()));
    let steps: Vec<&Value> = lines.iter().map(|line| &line["step"]).collect();
    assert_eq!(data["steps"].as_array().unwrap().iter().collect::<Vec<_>>(), steps);
    for (chart, series, pointer) in FIELDS {
        let find = |list: &Value, key: &str, name: &str| -> Value {
            list.as_array()
                .unwrap()
                .iter()
                .find(|one| one[key] == name)
                .cloned()
                .unwrap_or_else(|| panic!("{name}"))
        };
        let series = find(&find(&data["charts"], "id", chart)["series"], "name", series);
        let values = series["values"].as_array().unwrap();
        assert_eq!(values.len(), lines.len(), "{series}");
        for (value, line) in values.iter().zip(&lines) {
            match line.pointer(pointer).and_then(Value::as_f64) {
                Some(expected) => {
                    let value = value.as_f64().unwrap_or_else(|| panic!("{pointer} of {line}"));
                    assert!(
                        (value - expected).abs() <= 1e-5 * expected.abs(),
                        "{pointer} {value} {expected}"
                    );
                }
                None => assert!(value.is_null(), "{pointer}: {value}"),
            }
        }
    }
    for chart in data["charts"].as_array().unwrap() {
        for series in chart["series"].as_array().unwrap() {
            assert_eq!(series["values"].as_array().unwrap().len(), lines.len(), "{}", series["name"]);
        }
    }
    // The parts of a step's time make up the step.
    let time = data["charts"].as_array().unwrap().iter().find(|chart| chart["id"] == "time").unwrap();
    for (index, line) in lines.iter().enumerate() {
        let parts = time["series"].as_array().unwrap().iter();
        let sum: f64 = parts.map(|series| series["values"][index].as_f64().unwrap()).sum();
        assert!((sum / line["step_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-4, "step {index}: {sum}");
    }
}

#[test]
fn a_slow_rank_stands_out_and_events_are_told() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 40);
    let run = Run::read(folder.path()).unwrap();
    let html = page(&run, None).unwrap();
    let data = data(&html);
    let heat = &data["heat"];
    assert_eq!(heat["rows"], serde_json::json!(["0 · stage 0", "1 · stage 0", "2 · stage 1", "3 · stage 1"]));
    assert_eq!(heat["steps"].as_array().unwrap().len(), 40);
    for column in heat["measures"][0]["values"].as_array().unwrap() {
        let own: Vec<f64> = column.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
        assert!(
            (own[3] - 1.5).abs() < 1e-3 && own[..3].iter().all(|own| (own - 1.0).abs() < 1e-3),
            "{own:?}"
        );
    }
    let kinds: Vec<&str> =
        data["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    for kind in ["start", "skipped", "checkpoint", "finish"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    for text in ["started on 4 ranks, mesh pp 2 x dp 2", "checkpoint of step 20: 1.00 MiB", "4 (pp 2 × dp 2)"]
    {
        assert!(html.contains(text), "{text}");
    }
    assert!(html.contains("rank 3 takes 1.50 times as long as the others"), "the diagnosis");
    assert!(html.find(PAGE_MARKER).is_some_and(|at| at < 512), "by which a later report knows its own page");
    // A text of the run ends no element of the page.
    assert!(!html.contains("</script><b>") && html.contains("&lt;&#x2f;script&gt;"), "texts are escaped");
    assert!(!html.contains("http://") && !html.contains("src="), "nothing is loaded");
}

#[test]
fn a_long_run_keeps_its_outliers_in_fewer_points() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 1);
    let line = |step| {
        let loss = if step == 4321 { 1e6 } else { 1.0 };
        let record = brigade_report::StepRecord { loss, rank_seconds: None, ..made::record(step) };
        serde_json::to_string(&record).unwrap() + "\n"
    };
    let text: String = (1..=9001).filter(|step| *step != 7).map(line).collect();
    fs::write(folder.path().join("metrics.jsonl"), text).unwrap();
    let html = page(&Run::read(folder.path()).unwrap(), None).unwrap();
    let data = data(&html);
    let points = data["steps"].as_array().unwrap().len();
    assert!((1000..=4000).contains(&points), "{points} points");
    let loss = data["charts"][0]["series"][0]["values"].as_array().unwrap();
    assert!(loss.len() == points && loss.contains(&1e6.into()));
    assert!(html.contains("Two neighbouring points stand for 5 steps"));
}

#[test]
fn two_runs_stand_in_one_page_with_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    made::run(&a, 40);
    made::run(&b, 25);
    fs::write(b.join("config.toml"), made::CONFIG.replace("steps = 40", "steps = 25")).unwrap();
    let [a, b] = [a, b].map(|dir| Run::read(&dir).unwrap());
    let html = page(&a, Some(&b)).unwrap();
    let data = data(&html);
    assert_eq!(data["compare"]["steps"].as_array().unwrap().len(), 25);
    assert_eq!(data["compare"]["charts"].as_array().unwrap().len(), data["charts"].as_array().unwrap().len());
    assert!(html.contains("Differences to b"), "{html}");
    assert!(html.contains("<code>train.steps</code></td><td><code>40</code></td><td><code>25</code>"));
}

#[test]
fn the_last_step_of_the_newest_timeline_is_in_the_page() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 5);
    let page_data = || data(&page(&Run::read(folder.path()).unwrap(), None).unwrap());
    assert!(page_data()["timeline"].is_null());

    made::timeline(folder.path(), &crate::idle::pipeline());
    let timeline = page_data()["timeline"].take();
    assert_eq!((&timeline["step"], &timeline["seconds"]), (&4.into(), &1.0.into()));
    let rows = timeline["rows"].as_array().unwrap();
    let names: Vec<&Value> = rows.iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["0 · stage 0", "1 · stage 1"]);
    for (row, waited) in rows.iter().zip([0.8, 0.4]) {
        assert!((row["waited"].as_f64().unwrap() - waited).abs() < 1e-6, "{row}");
    }
    let spans: Vec<(&str, &str, f64, f64)> = (rows[0]["spans"].as_array().unwrap().iter())
        .map(|span| {
            let text = |key: &str| span[key].as_str().unwrap();
            let number = |key: &str| span[key].as_f64().unwrap();
            (text("kind"), text("name"), number("start"), number("end"))
        })
        .collect();
    let expected = [
        ("forward", "F0.0", 0.0, 0.1),
        ("backward", "B0.0", 0.7, 0.8),
        ("wait", "pipeline", 0.1, 0.7),
        ("wait", "data", 0.8, 0.85),
        ("wait", "all_reduce", 0.85, 1.0),
    ];
    assert_eq!(spans, expected);
}

#[test]
fn a_timeline_that_cannot_be_read_leaves_the_page_without_one() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 5);
    made::timeline(folder.path(), &crate::idle::pipeline());
    let file = folder.path().join("profile/steps-4-4.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    let data = data(&page(&Run::read(folder.path()).unwrap(), None).unwrap());
    assert!(data["timeline"].is_null());
}
