//! Hands the target's name to the code: `cargo metadata` wants it in order to leave out other platforms' packages.

fn main() {
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=BRIGADE_DATA_TARGET={target}");
    println!("cargo::rerun-if-changed=build.rs");
}
