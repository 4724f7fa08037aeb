//! The page in a browser, where there is one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_runs::{Run, page};
use serde_json::Value;

use crate::{data::data, made};

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Far longer than a browser takes to start on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// The document as it is after the page's scripts have run; none without a browser.
pub fn document(address: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", folder.path().display());
    let out = folder.path().join("out");
    let start = |browser: &&str| {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,844", &profile]);
        command.args(["--virtual-time-budget=5000", "--dump-dom", address]);
        command
            .stdin(Stdio::null())
            .stdout(fs::File::create(&out).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .ok()
    };
    let mut child = BROWSERS.iter().find_map(start)?;
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("the browser is not done after {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(fs::read_to_string(out).unwrap())
}

/// What stands between two texts.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("{begin}")).1;
    rest.split_once(end).unwrap().0
}

fn numbers(values: &Value) -> usize {
    values.as_array().unwrap().iter().filter(|value| value.is_number()).count()
}

#[track_caller]
fn shows(path: &Path, html: &str) {
    let Some(document) = document(&format!("file://{}", path.display())) else {
        eprintln!("passed over: no browser of {BROWSERS:?} is installed");
        return;
    };
    assert_eq!(between(&document, "data-errors=\"", "\""), "0");
    let data = data(html);
    let charts = data["charts"].as_array().unwrap();
    let spans = data["timeline"]["rows"].as_array().map(|rows| {
        let of = |row: &Value| row["spans"].as_array().unwrap().len();
        rows.iter().map(of).sum::<usize>()
    });
    let count = charts.len() + 1 + usize::from(spans.is_some());
    assert_eq!(between(&document, "data-charts=\"", "\""), count.to_string(), "with heat map and timeline");
    if let Some(spans) = spans {
        let place = between(&document, "id=\"step-timeline\"", "</section>");
        assert_eq!(between(place, "data-points=\"", "\""), spans.to_string());
        assert!(place.contains("<canvas") && place.contains("waits most"), "{place}");
    }
    for chart in charts {
        let id = chart["id"].as_str().unwrap();
        let place = between(&document, &format!("id=\"chart-{id}\""), "</section>");
        let own: usize =
            chart["series"].as_array().unwrap().iter().map(|series| numbers(&series["values"])).sum();
        let other =
            data["compare"]["charts"].as_array().into_iter().flatten().find(|other| other["id"] == id);
        let other: usize = other.filter(|_| chart["stacked"] == false).map_or(0, |other| {
            other["series"].as_array().unwrap().iter().map(|series| numbers(&series["values"])).sum()
        });
        assert_eq!(between(place, "data-points=\"", "\""), (own + other).to_string(), "{id}");
        assert!(place.contains("<canvas"), "{id}");
    }
}

#[test]
fn a_browser_draws_every_chart_without_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    made::run(&a, 40);
    made::run(&b, 25);
    made::timeline(&a, &crate::idle::pipeline());
    let [a, b] = [a, b].map(|dir| Run::read(&dir).unwrap());
    for other in [None, Some(&b)] {
        let html = page(&a, other).unwrap();
        let path = folder.path().join("page.html");
        fs::write(&path, &html).unwrap();
        shows(&path, &html);
    }
}
