//! Compiles the calls of MPI by the compiler that the MPI library brings along, and links what it says.

fn main() {
    println!("cargo::rerun-if-changed=src/library/calls.c");
    println!("cargo::rerun-if-env-changed=MPICC");
    #[cfg(feature = "mpi")]
    if std::env::var_os("DOCS_RS").is_none()
        && let Err(reason) = mpi::build()
    {
        println!("cargo::error={reason}");
    }
}

#[cfg(feature = "mpi")]
mod mpi {
    use std::process::Command;

    pub fn build() -> Result<(), String> {
        let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
        let install = "the feature `mpi` needs an MPI with its headers (Debian: libopenmpi-dev or libmpich-dev), and its compiler as \
                       mpicc in PATH or in MPICC";
        let shown = Command::new(&mpicc)
            .arg("-show")
            .output()
            .map_err(|error| format!("cannot run `{mpicc} -show`: {error}; {install}"))?;
        if !shown.status.success() {
            let said = String::from_utf8_lossy(&shown.stderr);
            return Err(format!("`{mpicc} -show` failed: {}; {install}", said.trim()));
        }
        let command = String::from_utf8_lossy(&shown.stdout).into_owned();
        cc::Build::new()
            .compiler(&mpicc)
            .std("c11")
            .file("src/library/calls.c")
            .try_compile("brigade_mpi")
            .map_err(|error| format!("`{mpicc}` cannot compile the calls of MPI: {error}"))?;
        for word in command.split_whitespace() {
            if let Some(folder) = word.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={folder}");
            } else if let Some(library) = word.strip_prefix("-l") {
                println!("cargo::rustc-link-lib={library}");
            }
        }
        Ok(())
    }
}
