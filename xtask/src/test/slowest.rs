//! The tests that took longest, from nextest's report.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::commands::Runner;

/// How many are shown.
const COUNT: usize = 10;

/// A test that ran, with its time in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    name: String,
    seconds: f64,
}

/// The reports that commands leave behind.
#[derive(Debug)]
pub struct Reports {
    target: PathBuf,
}

impl Reports {
    /// Of commands that build in this folder.
    pub fn of(target: &Path) -> Self {
        Self { target: target.to_owned() }
    }

    /// Where a command of nextest writes its report, which [`Reports::clear`] empties before.
    fn path(&self, command: &Command) -> Option<PathBuf> {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        if args.first().is_none_or(|first| first != "nextest") {
            return None;
        }
        let own = args.iter().take_while(|arg| *arg != "--");
        let own: Vec<_> = own.collect();
        let after = own.iter().position(|arg| matches!(arg.as_ref(), "--profile" | "-P")).map(|at| at + 1);
        let profile = after.and_then(|at| own.get(at)).map_or("default", |name| name.as_ref());
        Some(self.target.join("nextest").join(profile).join("junit.xml"))
    }

    /// Removes the report of an earlier command.
    pub fn clear(&self, command: &Command) {
        if let Some(path) = self.path(command) {
            // Where it cannot be removed, the command replaces it.
            let _ = std::fs::remove_file(path);
        }
    }

    /// The tests that a command ran; none if it did not come as far.
    pub fn tests(&self, command: &Command) -> Vec<Timed> {
        let text = self.path(command).and_then(|path| std::fs::read_to_string(path).ok());
        text.map(|text| parse(&text)).unwrap_or_default()
    }
}

fn parse(report: &str) -> Vec<Timed> {
    let Ok(document) = roxmltree::Document::parse(report) else { return Vec::new() };
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let timed = cases.filter_map(|case| {
        let (binary, name) = (case.attribute("classname")?, case.attribute("name")?);
        Some(Timed { name: format!("{binary} {name}"), seconds: case.attribute("time")?.parse().ok()? })
    });
    timed.collect()
}

/// The slowest of all tests; under `cargo test`, which tells no times, how to get them.
pub fn show(runner: Runner, mut tests: Vec<Timed>) -> String {
    if runner == Runner::Cargo {
        return "cargo test measures no single test; with cargo-nextest installed, the slowest are listed here\n".to_owned();
    }
    tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut text = String::new();
    if !tests.is_empty() {
        text += &format!("slowest of {} tests:\n", tests.len());
    }
    for Timed { name, seconds } in tests.iter().take(COUNT) {
        text += &format!("{seconds:>8.1} s  {name}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="9.000">
    <testsuite name="brigade-comm::suite" tests="2" disabled="0" errors="0" failures="1">
        <testcase name="ring::wraps" classname="brigade-comm::suite" timestamp="2026-01-01T00:00:00Z" time="0.512"/>
        <testcase name="tcp::ends" classname="brigade-comm::suite" timestamp="2026-01-01T00:00:00Z" time="7.25">
            <failure type="test failure">panicked at &lt;here&gt;</failure>
        </testcase>
    </testsuite>
    <testsuite name="xtask::bin/xtask" tests="1" disabled="0" errors="0" failures="0">
        <testcase name="ends" classname="xtask::bin/xtask" timestamp="2026-01-01T00:00:00Z" time="1"/>
    </testsuite>
</testsuites>"#;

    #[test]
    fn the_slowest_come_first() {
        assert_eq!(
            show(Runner::Nextest, parse(REPORT)),
            "slowest of 3 tests:\n     7.2 s  brigade-comm::suite tcp::ends\n     1.0 s  xtask::bin/xtask ends\n     \
             0.5 s  brigade-comm::suite ring::wraps\n"
        );
        let many = (0..30).map(|i| Timed { name: format!("test {i}"), seconds: f64::from(i) }).collect();
        let text = show(Runner::Nextest, many);
        assert_eq!(text.lines().count(), 11);
        assert!(text.contains("test 29") && text.contains("test 20") && !text.contains("test 19"), "{text}");
        assert_eq!(show(Runner::Nextest, parse("no report")), "");
        assert!(show(Runner::Cargo, Vec::new()).contains("cargo-nextest"));
    }

    #[test]
    fn the_report_is_that_of_the_profile() {
        let reports = Reports::of(Path::new("/t"));
        let path = |args: &[&str]| reports.path(&cargo::command(args));
        let of = |profile: &str| Some(PathBuf::from(format!("/t/nextest/{profile}/junit.xml")));
        assert_eq!(path(&["nextest", "run"]), of("default"));
        assert_eq!(path(&["nextest", "run", "--profile", "ci", "-p", "a"]), of("ci"));
        assert_eq!(path(&["nextest", "run", "--", "--profile", "ci"]), of("default"));
        assert_eq!(path(&["test", "--profile", "ci"]), None);
    }
}
