//! `cargo xtask dist`: a binary to carry to another machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use brigade_files::{AtomicFile, write_atomic};

use crate::backend::Backend;
use crate::cargo;

/// Options of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to build for, besides the CPU.
    #[arg(long, value_enum, default_value = "cpu")]
    backend: Backend,
    /// Folder of the binary [default: dist/ of the workspace].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Starts of the names of libraries that are found at run time, or linked statically: a binary that needs one of them
/// does not start on a machine that lacks it.
const NEVER_NEEDED: [&str; 6] = ["libcuda", "libnccl", "libnvrtc", "libcublas", "libvulkan", "libLLVM"];

/// A binary and the file with its checksum.
#[derive(Debug)]
struct Dist {
    binary: PathBuf,
    checksum: PathBuf,
    /// Of the binary.
    bytes: u64,
    /// Libraries that it needs to start.
    needed: Vec<String>,
}

/// Builds, checks and copies.
pub fn run(args: &Args) -> Result<()> {
    let program = args.backend.build_with("dist", &[cargo::FEATURES])?;
    let out = args.out.clone().unwrap_or_else(|| cargo::root().join("dist"));
    let dist = Dist::of(&program, &out, &name(args.backend, &host()?))?;
    println!("{}  {:.1} MiB", dist.binary.display(), dist.bytes as f64 / f64::from(1 << 20));
    println!("{}", dist.checksum.display());
    println!("needs {}", dist.needed.join(", "));
    Ok(())
}

/// How the names of binaries begin.
const NAMES: &str = concat!("brigade-", env!("CARGO_PKG_VERSION"), "-");

fn name(backend: Backend, target: &str) -> String {
    format!("{NAMES}{}-{target}", backend.name())
}

/// Whether a program has the name of Brigade's own, as it is built or as it is carried to another machine.
pub fn is_brigade(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name == "brigade" || name.starts_with(NAMES)
}

impl Dist {
    /// Copies a program that was built, under a name. What is there of that name is replaced.
    ///
    /// # Errors
    /// If it needs a library of [`NEVER_NEEDED`], or a file cannot be written.
    fn of(program: &Path, out: &Path, name: &str) -> Result<Self> {
        let needed = check(program)?;
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let binary = out.join(name);
        // A file that is being run cannot be written to, but another can take its name.
        let bytes = replace_program(program, &binary)
            .with_context(|| format!("cannot write {}", binary.display()))?;
        let checksum = out.join(format!("{name}.sha256"));
        let line = output(Command::new("sha256sum").arg(name).current_dir(out))?;
        write_atomic(&checksum, line.as_bytes())
            .with_context(|| format!("cannot write {}", checksum.display()))?;
        Ok(Self { binary, checksum, bytes, needed })
    }
}

/// Copies a program with its permissions; the size in bytes.
fn replace_program(program: &Path, target: &Path) -> std::io::Result<u64> {
    let mut source = File::open(program)?;
    let mut copy = AtomicFile::create(target)?;
    let bytes = std::io::copy(&mut source, &mut copy)?;
    copy.file().set_permissions(source.metadata()?.permissions())?;
    copy.commit()?;
    Ok(bytes)
}

/// The libraries that a program needs to start.
///
/// # Errors
/// If it needs one of [`NEVER_NEEDED`], or is no program.
pub fn check(program: &Path) -> Result<Vec<String>> {
    let needed = needed(program)?;
    refuse(program, &needed)?;
    Ok(needed)
}

fn refuse(program: &Path, needed: &[String]) -> Result<()> {
    let is_bad = |library: &&String| NEVER_NEEDED.iter().any(|start| library.starts_with(start));
    let bad: Vec<_> = needed.iter().filter(is_bad).map(String::as_str).collect();
    ensure!(
        bad.is_empty(),
        "{} needs {} to start, and would not without; such libraries must be found at run time or linked statically",
        program.display(),
        bad.join(" and ")
    );
    Ok(())
}

/// The libraries that the loader must find before a program starts.
fn needed(program: &Path) -> Result<Vec<String>> {
    let text =
        output(Command::new("readelf").env("LC_ALL", "C").arg("--dynamic").arg("--wide").arg(program))?;
    ensure!(
        text.contains("(NEEDED)"),
        "readelf finds no library that {} needs, not even libc",
        program.display()
    );
    Ok(libraries(&text))
}

/// Those that `readelf --dynamic` lists.
fn libraries(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.strip_suffix(']')?.to_owned())).collect()
}

/// The target that cargo builds for by default.
pub fn host() -> Result<String> {
    let text = output(Command::new(cargo::program()).arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`cargo -vV` names no host")
}

/// What a program prints.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_is_named_after_what_it_is_for() {
        let host = host().unwrap();
        assert!(host.split('-').count() >= 3, "{host}");
        let expected = format!("brigade-{}-cuda-{host}", env!("CARGO_PKG_VERSION"));
        assert_eq!(name(Backend::Cuda, &host), expected);
        for (program, is_own) in
            [(&*expected, true), ("target/dist/brigade", true), ("target/brigade-mine", false)]
        {
            assert_eq!(is_brigade(Path::new(program)), is_own, "{program}");
        }
    }

    /// The program is the one that runs this test.
    #[test]
    fn the_copy_runs_and_its_checksum_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new/dist");
        let program = std::env::current_exe().unwrap();
        for _ in 0..2 {
            let dist = Dist::of(&program, &out, "brigade-1").unwrap();
            assert_eq!(dist.bytes, std::fs::metadata(&program).unwrap().len());
            assert!(dist.needed.iter().any(|library| library.starts_with("libc.so")), "{:?}", dist.needed);
            assert!(Command::new(&dist.binary).arg("--list").output().unwrap().status.success());
        }
        let mut files: Vec<_> =
            std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["brigade-1", "brigade-1.sha256"]);
        let check = |out: &Path| {
            Command::new("sha256sum").arg("-c").arg("brigade-1.sha256").current_dir(out).output().unwrap()
        };
        assert!(check(&out).status.success());
        std::fs::write(out.join("brigade-1"), "damaged").unwrap();
        assert!(!check(&out).status.success());
    }

    #[test]
    fn libraries_that_may_be_missing_are_refused() {
        let text = "
Dynamic section at offset 0x6f3d0 contains 30 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libnccl.so.2]
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000c (INIT)               0x6a000
";
        let found = libraries(text);
        assert_eq!(found, ["libnccl.so.2", "libgcc_s.so.1", "libcudart.so.13", "libc.so.6"]);
        let error = refuse(Path::new("brigade"), &found).unwrap_err().to_string();
        assert!(error.starts_with("brigade needs libnccl.so.2 and libcudart.so.13 to start"), "{error}");
        assert!(refuse(Path::new("brigade"), &found[1..2]).is_ok());
    }

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        std::fs::write(&file, "no program").unwrap();
        assert!(Dist::of(&file, &folder.path().join("out"), "a").is_err());
        assert!(!folder.path().join("out").exists());
    }
}
