//! `brigade report`

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use brigade::{UsageError, exit};
use brigade_files::write_atomic;
use brigade_runs::scaling::{diagnose, not_told_apart, too_few_steps};
use brigade_runs::{PAGE_MARKER, Run, page};
use clap::Args;

use super::place::RunPlace;
use super::say_unreadable;
use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade report runs/a --open             what happened, and where the time went
  brigade report runs/b --compare runs/a   beside another run, with what differs
  brigade report runs/a --out page.html    to a file of your choice
  brigade report gs://bucket/runs/a        a run whose results go to a bucket
  brigade report runs/a --json             what makes it slow, for programs; writes nothing";

/// What a page begins with.
const DOCTYPE: &str = "<!doctype html>";

/// How many bytes of a file are searched for the mark of a page.
const MARK_WITHIN: u64 = 1024;

/// The page's name in the run's folder.
const REPORT_FILE: &str = "report.html";

/// A program that has not failed for this long has opened the page, or shows it itself.
const OPENS_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folder or URL (gs://, s3://) of a run, which may still be running.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File to write: a single HTML file that needs no network [default: report.html in the run's folder, or RUN-report.html here for a URL].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder or URL of another run of the same model, to compare with this one.
    #[arg(long, value_name = "RUN")]
    compare: Option<PathBuf>,
    /// Also open the page in a browser.
    #[arg(long)]
    open: bool,
    /// Instead of writing a page, print what makes the run slow as JSON: a list, the greatest gain first.
    #[arg(long, conflicts_with_all = ["out", "compare", "open"])]
    json: bool,
}

pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    if args.json {
        let place = RunPlace::of(&args.run).map_err(UsageError)?;
        let run = Run::read(place.folder()).map_err(|error| UsageError(error.into()))?;
        print(&format!("{}\n", serde_json::to_string_pretty(&diagnose(&run))?))?;
        say_unreadable(&run);
        if let Some(why) = too_few_steps(&run) {
            brigade::print_stderr(format_args!("{why}"));
        }
        if let Some(note) = not_told_apart(&run) {
            brigade::print_stderr(format_args!("note: {note}"));
        }
        return Ok(ExitCode::from(exit::DONE));
    }
    let place = RunPlace::of(&args.run).map_err(UsageError)?;
    let out = args.out.clone().unwrap_or_else(|| match place.is_copy() {
        true => format!("{}-{REPORT_FILE}", name(place.folder())).into(),
        false => args.run.join(REPORT_FILE),
    });
    let html = html(args, &place, &out).map_err(UsageError)?;
    write_atomic(&out, html.as_bytes())
        .with_context(|| format!("--out {}: cannot write it", out.display()))?;
    print(&format!("{}\n", out.display()))?;
    if args.open {
        let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        open(program, &out)?;
    }
    Ok(ExitCode::from(exit::DONE))
}

fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn html(args: &ReportArgs, place: &RunPlace, out: &Path) -> anyhow::Result<String> {
    let run = Run::read(place.folder())?;
    let other = args.compare.as_deref().map(RunPlace::of).transpose().context("--compare")?;
    let other = other.as_ref().map(|other| Run::read(other.folder())).transpose().context("--compare")?;
    // Pages of earlier versions had no mark, and were rarely anywhere else.
    let is_elsewhere = args.out.is_some() || place.is_copy();
    let mark = if is_elsewhere { PAGE_MARKER } else { DOCTYPE };
    if is_something_else(out, mark) {
        bail!(
            "--out {} exists and is not a page that brigade report wrote; give another file",
            out.display()
        );
    }
    let page = page(&run, other.as_ref())?;
    std::iter::once(&run).chain(&other).for_each(say_unreadable);
    Ok(page)
}

/// Whether the file exists, has something in it, and was not written by an earlier report: it is no page, or has no such mark near its beginning.
fn is_something_else(path: &Path, mark: &str) -> bool {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MARK_WITHIN).read_to_end(&mut begin));
    let text = String::from_utf8_lossy(&begin);
    read.is_ok_and(|length| length > 0) && !(text.starts_with(DOCTYPE) && text.contains(mark))
}

/// Opens the page with a program that knows the system's browser.
///
/// # Errors
/// If it cannot be started or fails.
fn open(program: &str, page: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let by_hand = || format!("--open: cannot open the page with {program}; open {} by hand", page.display());
    let mut child = command.spawn().with_context(by_hand)?;
    let until = Instant::now() + OPENS_WITHIN;
    loop {
        match child.try_wait().with_context(by_hand)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(anyhow!("{status}")).with_context(by_hand),
            None if Instant::now() >= until => return Ok(()),
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_no_browser_opens_is_to_be_opened_by_hand() {
        let page = Path::new("a/report.html");
        open("true", page).unwrap();
        for program in ["false", "no-such-program"] {
            let error = format!("{:#}", open(program, page).unwrap_err());
            let said = format!("--open: cannot open the page with {program}; open a/report.html by hand: ");
            assert!(error.starts_with(&said), "{error}");
        }
    }
}
