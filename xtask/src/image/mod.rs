//! `cargo xtask image`: an OCI image of the `brigade` program, without Docker.
//!
//! It has the program, the libraries that it is linked with, the certificates of authorities, and licences, and nothing else: no shell. The driver of a GPU comes from the host, as
//! NVIDIA's container toolkit mounts it. The toolkit mounts neither libdevice, which is always in, nor NCCL and cuBLAS, which are in if they are asked for: they are larger than all
//! the rest. The same program gives the same bytes: times are zero, entries have one order.

#[cfg(test)]
mod alone;
mod archive;
mod contents;
mod nvidia;
mod oci;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use brigade_files::write_atomic;

use crate::backend::Backend;
use crate::cargo;
use crate::dist;
use contents::Contents;
use nvidia::Library;

/// Options of `cargo xtask image`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to build for, besides the CPU.
    #[arg(long, value_enum, default_value = "cpu")]
    backend: Backend,
    /// The file to write, an archive of the image as `podman load`, `docker load` and `skopeo copy oci-archive:` read it.
    #[arg(long, short, value_name = "FILE", default_value = "brigade.tar")]
    output: PathBuf,
    /// A program that is already built: `brigade`, or your own one based on it, which the image has as /usr/local/bin/program.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The Cargo.toml of that program, whose licences, and those of all that it is built from, the image then has.
    #[arg(long, value_name = "FILE", requires = "program")]
    manifest_path: Option<PathBuf>,
    /// Put NCCL into the image, for several GPUs: this file, or the libnccl.so.2 of this machine.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    nccl: Option<Option<PathBuf>>,
    /// Put cuBLAS into the image, for fast products of matrices: this file and the libcublasLt beside it, or those of this machine.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    cublas: Option<Option<PathBuf>>,
}

impl Args {
    /// The libraries to put in, and a line on each that is left to the host.
    fn libraries(&self) -> Result<(Vec<Library>, Vec<String>)> {
        let (mut libraries, mut absent) = (Vec::new(), Vec::new());
        for (kind, given) in [(nvidia::NCCL, &self.nccl), (nvidia::CUBLAS, &self.cublas)] {
            match given {
                Some(file) => libraries.extend(kind.find(file.as_deref())?),
                None if self.backend == Backend::Cuda => absent.push(kind.absent()),
                None => {}
            }
        }
        Ok((libraries, absent))
    }
}

/// Builds the program and writes its image.
pub fn run(args: &Args) -> Result<()> {
    let (libraries, absent) = args.libraries()?;
    let program = match &args.program {
        Some(given) => given.clone(),
        None => args.backend.build_with("dist", &[cargo::FEATURES])?,
    };
    let libdevice = match args.backend {
        Backend::Cuda => Some(contents::libdevice()?),
        _ => None,
    };
    let title = program.file_stem().unwrap_or_default().to_string_lossy();
    let of_brigade = cargo::root().join("Cargo.toml");
    let sources = match &args.manifest_path {
        Some(manifest) => Sources { manifest, name: &title },
        None => Sources { manifest: &of_brigade, name: BRIGADE },
    };
    let is_brigade = dist::is_brigade(&program);
    let about = About {
        program: if is_brigade { BRIGADE } else { OWN },
        title: if is_brigade { BRIGADE } else { &title },
        backend: args.backend,
        features: args.program.is_none().then_some(cargo::FEATURES),
    };
    let image = build(&program, libdevice.as_deref(), &libraries, &sources, &about)?;
    if is_brigade && libraries.is_empty() {
        check_size(image.archive.len())?;
    }
    write_atomic(&args.output, &image.archive)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    println!(
        "{}  {:.1} MiB  {}",
        args.output.display(),
        image.archive.len() as f64 / f64::from(1 << 20),
        image.digest
    );
    absent.iter().for_each(|line| println!("{line}"));
    if !is_brigade {
        println!("the program in it is /usr/local/bin/{OWN}: submit it with --program {OWN}");
    }
    if args.program.is_some() && args.manifest_path.is_none() {
        println!(
            "the licences in it are Brigade's: for another program, give its Cargo.toml with --manifest-path"
        );
    }
    Ok(())
}

/// Bytes that an image of `brigade` may have, without NVIDIA's libraries.
const MAX_BYTES: usize = 150_000_000;

fn check_size(bytes: usize) -> Result<()> {
    ensure!(
        bytes <= MAX_BYTES,
        "the image would have {bytes} bytes, more than the {MAX_BYTES} that one of `brigade` may have without NCCL and cuBLAS: look for a dependency that has grown"
    );
    Ok(())
}

/// What Brigade's own program and its licences are called.
const BRIGADE: &str = "brigade";

/// What any other program is called in the image, as in `examples/Dockerfile`: `brigade submit` takes `brigade` for the command.
const OWN: &str = "program";

/// What an image says of its program.
struct About<'a> {
    /// The program's name in it.
    program: &'static str,
    /// The program's own name.
    title: &'a str,
    /// What it is for, besides the CPU.
    backend: Backend,
    /// Features that it was built with, where that is known.
    features: Option<&'static str>,
}

/// What a program is built from.
struct Sources<'a> {
    /// Its Cargo.toml.
    manifest: &'a Path,
    /// What its own licences are called.
    name: &'a str,
}

/// The image of a program, of libdevice if it has kernels for NVIDIA's GPUs, of these libraries, and of the licences of what it is built from.
fn build(
    program: &Path,
    libdevice: Option<&Path>,
    libraries: &[Library],
    sources: &Sources<'_>,
    about: &About<'_>,
) -> Result<oci::Image> {
    let mut contents = Contents::new();
    contents.program(program, about.program)?;
    if let Some(libdevice) = libdevice {
        contents.libdevice(libdevice)?;
    }
    libraries.iter().try_for_each(|library| contents.loaded(library))?;
    contents.licences(sources.manifest, sources.name)?;
    oci::image(&contents.into_layer()?, about)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    /// The files of an archive.
    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let mut files = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), bytes);
        }
        files
    }

    /// The program is the one that runs this test.
    #[test]
    fn an_image_is_the_same_each_time_and_its_parts_are_what_they_are_called() {
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let libdevice = folder.path().join("libdevice.10.bc");
        std::fs::write(&libdevice, "BC").unwrap();
        // Any library stands for it.
        let libc =
            contents::libraries(&program, None).unwrap().into_iter().find(|file| file.ends_with("libc.so.6"));
        let nccl = [Library { file: libc.unwrap(), name: "libnccl.so.2".into() }];
        let manifest = cargo::root().join("Cargo.toml");
        let sources = Sources { manifest: &manifest, name: BRIGADE };
        let about = about(BRIGADE);
        let (image, again) =
            [(); 2].map(|()| build(&program, Some(&libdevice), &nccl, &sources, &about).unwrap()).into();
        assert!(image.archive == again.archive, "other bytes");
        let files = files(&image.archive);
        for (name, bytes) in
            files.iter().filter_map(|(name, bytes)| Some((name.strip_prefix("blobs/sha256/")?, bytes)))
        {
            assert!(name.is_empty() || name == oci::sha256(bytes), "{name}");
        }
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let blob = |digest: &Value| &files[&format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"))];
        assert_eq!(json(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
        let manifest = json(blob(&json(&files["index.json"])["manifests"][0]["digest"]));
        let config = json(blob(&manifest["config"]["digest"]));
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/local/bin/brigade"]));
        assert_eq!(
            (config["config"]["User"].as_str(), config["os"].as_str()),
            (Some("65532:65532"), Some("linux"))
        );
        assert!(config["config"]["Env"].as_array().unwrap().contains(&"HOME=/tmp".into()), "{config}");
        let labels = &config["config"]["Labels"];
        assert_eq!(
            (&labels["dev.brigade.backend"], &labels["dev.brigade.features"]),
            (&"cuda".into(), &"object-store".into())
        );
        let compressed = blob(&manifest["layers"][0]["digest"]);
        assert_eq!(manifest["layers"][0]["size"], compressed.len());
        let mut layer = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&compressed[..]), &mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", oci::sha256(&layer)));
        let inside = self::files(&layer);
        for name in [
            "licenses/brigade/LICENSE-MIT",
            "licenses/brigade/LICENSE-APACHE",
            "etc/passwd",
            "usr/local/bin/brigade",
            "usr/local/cuda/nvvm/libdevice/libdevice.10.bc",
            "usr/local/cuda/lib64/libnccl.so.2",
        ] {
            assert!(inside.contains_key(name), "{name}");
        }
        let licences =
            inside.keys().filter(|name| name.starts_with("licenses/") && name.contains("serde-")).count();
        assert!(licences > 0, "{:?}", inside.keys());
        alone::runs_alone(&layer, &config["config"]);
    }

    fn about(program: &'static str) -> About<'static> {
        About { program, title: "mine", backend: Backend::Cuda, features: Some(cargo::FEATURES) }
    }

    /// The one that is submitted with `--program program`.
    #[test]
    fn a_program_of_ones_own_has_the_name_that_jobs_know() {
        let image = oci::image(b"", &About { features: None, ..about(OWN) }).unwrap();
        let entry = "\"Entrypoint\":[\"/usr/local/bin/program\"]";
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let config = files(&image.archive).values().map(text).find(|text| text.contains(entry)).unwrap();
        assert!(config.contains("\"org.opencontainers.image.title\":\"mine\""), "{config}");
        for others in ["image.version", "image.licenses", "dev.brigade.features"] {
            assert!(!config.contains(others), "{config}");
        }
        let mut contents = Contents::new();
        contents.program(&std::env::current_exe().unwrap(), OWN).unwrap();
        assert!(files(&contents.into_layer().unwrap()).contains_key("usr/local/bin/program"));
    }

    #[test]
    fn images_are_small() {
        check_size(MAX_BYTES).unwrap();
        let error = check_size(MAX_BYTES + 1).unwrap_err().to_string();
        assert!(error.contains("150000001 bytes, more than the 150000000"), "{error}");
    }

    #[test]
    fn a_program_of_ones_own_has_its_own_licences() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let package =
            |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\n");
        let helper = "[dependencies]\nhelper = { path = \"helper\" }\n";
        write("Cargo.toml", &format!("{}{helper}[workspace]\n", package("mine")));
        write("src/main.rs", "fn main() {}\n");
        write("LICENSE", "mine");
        write("helper/Cargo.toml", &package("helper"));
        write("helper/src/lib.rs", "");
        write("helper/COPYING", "theirs");
        let mut lock = Command::new(cargo::program());
        lock.args(["generate-lockfile", "--offline"]).current_dir(folder.path());
        assert!(lock.status().unwrap().success());
        let mut contents = Contents::new();
        contents.licences(&folder.path().join("Cargo.toml"), "mine").unwrap();
        let inside = files(&contents.into_layer().unwrap());
        assert_eq!(inside["licenses/mine/LICENSE"], b"mine");
        assert_eq!(inside["licenses/helper-1.0.0/COPYING"], b"theirs");
        assert!(!inside.keys().any(|name| name.starts_with("licenses/brigade")), "{:?}", inside.keys());
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        let manifest = cargo::root().join("Cargo.toml");
        let sources = Sources { manifest: &manifest, name: BRIGADE };
        assert!(build(&text, None, &[], &sources, &about(BRIGADE)).is_err());
    }
}
