//! How much memory it takes to tokenize corpora of several sizes, which should not depend on the size.
//!
//!     cargo bench -p brigade-data --bench memory -- 200 1000
//!
//! makes files of 200 and of 1000 MB, tokenizes each in a process of its own, and prints the most memory that the process had resident.
//! Token files are read through maps, of which the parts that were read count as resident until the system needs them for something
//! else.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use brigade_data::{Corpus, NoProgress, PrepareOptions, prepare};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const CORPUS: &str = "BRIGADE_BENCH_CORPUS";

/// Lines of about a kilobyte, until there are `bytes`.
fn write_corpus(path: &Path, bytes: u64) -> Outcome {
    let mut file = BufWriter::new(File::create(path)?);
    let (mut written, mut state) = (0, 0u64);
    while written < bytes {
        let mut line = String::from("{\"text\":\"");
        while line.len() < 1000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            line += &format!("word{} ", (state >> 40) % 20_000);
        }
        line += "\"}\n";
        file.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    Ok(file.flush()?)
}

/// Tokenizes the corpus, and prints what it took.
fn tokenize(corpus: &Path) -> Outcome {
    let sources = Corpus::from_sources(&[corpus.display().to_string()]);
    let prepared = prepare(&PrepareOptions::new(sources, corpus.with_extension("cache")), &NoProgress)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let (peak, now) = (line("VmHWM:"), line("RssAnon:"));
    let tokens = prepared.summary.counts.train_tokens;
    println!("{peak}, {now} at the end, {tokens} tokens, {:.0} s", prepared.summary.seconds);
    Ok(())
}

fn main() -> Outcome {
    if let Some(corpus) = std::env::var_os(CORPUS) {
        return tokenize(&PathBuf::from(corpus));
    }
    let sizes: Vec<u64> = std::env::args().filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![200, 1000] } else { sizes };
    for megabytes in sizes {
        let folder = tempfile::tempdir()?;
        let corpus = folder.path().join("corpus.jsonl");
        write_corpus(&corpus, megabytes * 1_000_000)?;
        println!("{megabytes} MB:");
        let status = Command::new(std::env::current_exe()?).env(CORPUS, &corpus).status()?;
        if !status.success() {
            return Err(format!("tokenizing ended with {status}").into());
        }
    }
    Ok(())
}
