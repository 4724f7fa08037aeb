//! An image as the OCI's image specification has it: a layer, a configuration, a manifest, an index.

use std::io::Write;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::archive::{Entries, Entry, archive};
use super::contents::{PROGRAMS, USER};
use super::{About, BRIGADE};

/// An image in an archive.
pub struct Image {
    /// Its bytes.
    pub archive: Vec<u8>,
    /// By which registries know it.
    pub digest: String,
}

/// The image with this layer alone.
pub fn image(layer: &[u8], about: &About<'_>) -> Result<Image> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzip.write_all(layer)?;
    let mut blobs = Entries::new();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut labels = json!({
        "org.opencontainers.image.title": about.title,
        "dev.brigade.backend": about.backend.name(),
    });
    if about.program == BRIGADE {
        labels["org.opencontainers.image.version"] = env!("CARGO_PKG_VERSION").into();
        labels["org.opencontainers.image.licenses"] = "MIT OR Apache-2.0".into();
    }
    if let Some(features) = about.features {
        labels["dev.brigade.features"] = features.replace("brigade-cli/", "").into();
    }
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [format!("/{PROGRAMS}/{}", about.program)],
            "User": format!("{USER}:{USER}"),
            "WorkingDir": "/tmp",
            "Env": [
                "PATH=/usr/local/bin",
                // Other users than the image's own are in no /etc/passwd: their HOME would be /, where they can make no caches.
                "HOME=/tmp",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
                // Where Google's machines put the driver, and where NCCL and cuBLAS are, if the image has them.
                "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/cuda/lib64",
                "NVIDIA_VISIBLE_DEVICES=all",
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            ],
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(layer))] },
        "history": [{ "created_by": "cargo xtask image" }],
    });
    let layer = add(&mut blobs, "application/vnd.oci.image.layer.v1.tar+gzip", gzip.finish()?);
    let config = add(&mut blobs, "application/vnd.oci.image.config.v1+json", serde_json::to_vec(&config)?);
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer] });
    let mut manifest = add(&mut blobs, media_type, serde_json::to_vec(&manifest)?);
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "brigade:latest" });
    let index = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest] });
    let file = |value: &Value| -> Result<Entry> {
        Ok(Entry::File { bytes: serde_json::to_vec(value)?, mode: 0o644 })
    };
    blobs.insert("index.json".into(), file(&index)?);
    blobs.insert("oci-layout".into(), file(&json!({ "imageLayoutVersion": "1.0.0" }))?);
    for folder in ["blobs", "blobs/sha256"] {
        blobs.insert(folder.into(), Entry::Folder { mode: 0o755 });
    }
    Ok(Image { archive: archive(&blobs)?, digest })
}

/// Adds a blob; its descriptor.
fn add(blobs: &mut Entries, media_type: &str, bytes: Vec<u8>) -> Value {
    let hash = sha256(&bytes);
    let descriptor =
        json!({ "mediaType": media_type, "digest": format!("sha256:{hash}"), "size": bytes.len() });
    blobs.insert(format!("blobs/sha256/{hash}"), Entry::File { bytes, mode: 0o644 });
    descriptor
}

/// In hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
