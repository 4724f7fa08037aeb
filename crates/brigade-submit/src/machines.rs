//! GPUs, what clouds sell them in, and what NCCL must be told about the machines.
//!
//! Machine types are those of Google Cloud's documentation of accelerator-optimized machines; labels of nodes those of GKE (`cloud.google.com/gke-accelerator`)
//! and of NVIDIA's GPU feature discovery (`nvidia.com/gpu.product`).

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// A kind of GPU, by the name that `brigade plan` has for it, if it knows it.
#[derive(Debug, PartialEq)]
pub struct GpuKind {
    /// The name.
    pub name: &'static str,
    /// Vertex AI's name of the accelerator, and the machines in which it offers it.
    pub vertex: &'static [Shape],
    /// Values of GKE's label of nodes.
    pub(crate) gke: &'static [&'static str],
    /// Values of NVIDIA's label of nodes.
    pub(crate) products: &'static [&'static str],
    /// Whether each GPU of a node with eight has a network adapter of its own.
    has_rails: bool,
}

/// A machine that a cloud offers.
#[derive(Debug, PartialEq)]
pub struct Shape {
    /// Its GPUs.
    pub gpus: usize,
    /// The names of those with as many, the usual one first.
    pub machines: &'static [&'static str],
    /// The name of its GPUs.
    pub accelerator: &'static str,
    /// The most vCPUs of machines to which they are added; 0 for machines that always have them.
    pub(crate) most_cpus: usize,
}

const fn shape(gpus: usize, machines: &'static [&'static str], accelerator: &'static str) -> Shape {
    Shape { gpus, machines, accelerator, most_cpus: 0 }
}

impl Shape {
    /// Whether a machine has, or can have, as many of these GPUs.
    pub(crate) fn fits(&self, machine: &str) -> bool {
        let cpus = || machine.strip_prefix(GENERAL)?.rsplit('-').next()?.parse().ok();
        self.machines.contains(&machine) || cpus().is_some_and(|cpus: usize| cpus <= self.most_cpus)
    }
}

/// A series of machines to which GPUs are added.
const GENERAL: &str = "n1-";

/// The sizes of that series that Vertex AI offers.
const SIZES: [(&str, &[&str]); 3] = [
    ("n1-standard-", &["4", "8", "16", "32", "64", "96"]),
    ("n1-highmem-", &["2", "4", "8", "16", "32", "64", "96"]),
    ("n1-highcpu-", &["16", "32", "64", "96"]),
];

/// How the names of machines begin that always have GPUs of a kind that is known here.
const WITH_GPUS: [&str; 4] = ["a2-", "a3-", "a4-", "g2-"];

/// How those begin that always have other GPUs.
const WITH_OTHER_GPUS: [&str; 2] = ["a4x-", "g4-"];

/// What there is instead, where a machine is of a known series, but of no size of it.
pub(crate) fn unknown_shape(machine: &str) -> Option<String> {
    let size = |(series, sizes): &(&str, &[&str])| Some(sizes.contains(&machine.strip_prefix(series)?));
    if !machine.starts_with(GENERAL) || SIZES.iter().find_map(size) == Some(true) {
        return None;
    }
    let known = SIZES.map(|(series, sizes)| format!("{series}N with N = {}", sizes.join(", ")));
    Some(known.join("; "))
}

/// What is wrong with a machine of this name for a job without GPUs, if it always has some, of whatever kind.
pub(crate) fn has_gpus(machine: &str) -> Option<String> {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| machine.starts_with(beginning));
    if begins(&WITH_OTHER_GPUS) {
        return Some(format!(
            "--gpu-kind has no name for its GPUs; machines with usable GPUs are those of {}, and of {GENERAL} with GPUs added",
            WITH_GPUS.join(", ")
        ));
    }
    begins(&WITH_GPUS).then(|| {
        "it has GPUs: give --gpus and --gpu-kind, or a machine without GPUs, such as n1-standard-16".into()
    })
}

/// 1, 2, 4 or 8 of a kind that is only added to machines, with the most vCPUs of these.
const fn added<const N: usize>(accelerator: &'static str, most_cpus: [usize; N]) -> [Shape; N] {
    const USUAL: [Shape; 4] = [
        shape(1, &["n1-standard-8"], ""),
        shape(2, &["n1-standard-16"], ""),
        shape(4, &["n1-standard-32"], ""),
        shape(8, &["n1-standard-64"], ""),
    ];
    let mut all = [const { shape(0, &[], "") }; N];
    let mut at = 0;
    while at < N {
        let Shape { gpus, machines, .. } = USUAL[at];
        all[at] = Shape { gpus, machines, accelerator, most_cpus: most_cpus[at] };
        at += 1;
    }
    all
}

static V100: [Shape; 4] = added("NVIDIA_TESLA_V100", [12, 24, 48, 96]);
static T4: [Shape; 3] = added("NVIDIA_TESLA_T4", [48, 48, 96]);
static P4: [Shape; 3] = added("NVIDIA_TESLA_P4", [24, 48, 96]);
static P100: [Shape; 3] = added("NVIDIA_TESLA_P100", [16, 32, 96]);

static KINDS: [GpuKind; 12] = [
    GpuKind {
        name: "V100-16GB",
        vertex: &V100,
        gke: &["nvidia-tesla-v100"],
        products: &["Tesla-V100-SXM2-16GB"],
        has_rails: false,
    },
    GpuKind { name: "T4", vertex: &T4, gke: &["nvidia-tesla-t4"], products: &["Tesla-T4"], has_rails: false },
    GpuKind { name: "P4", vertex: &P4, gke: &["nvidia-tesla-p4"], products: &["Tesla-P4"], has_rails: false },
    GpuKind {
        name: "P100",
        vertex: &P100,
        gke: &["nvidia-tesla-p100"],
        products: &["Tesla-P100-PCIE-16GB", "Tesla-P100-SXM2-16GB"],
        has_rails: false,
    },
    GpuKind {
        name: "L4",
        vertex: &[
            shape(
                1,
                &["g2-standard-12", "g2-standard-4", "g2-standard-8", "g2-standard-16", "g2-standard-32"],
                "NVIDIA_L4",
            ),
            shape(2, &["g2-standard-24"], "NVIDIA_L4"),
            shape(4, &["g2-standard-48"], "NVIDIA_L4"),
            shape(8, &["g2-standard-96"], "NVIDIA_L4"),
        ],
        gke: &["nvidia-l4"],
        products: &["NVIDIA-L4"],
        has_rails: false,
    },
    GpuKind { name: "L40S", vertex: &[], gke: &[], products: &["NVIDIA-L40S"], has_rails: false },
    GpuKind {
        name: "A100-40GB",
        vertex: &[
            shape(1, &["a2-highgpu-1g"], "NVIDIA_TESLA_A100"),
            shape(2, &["a2-highgpu-2g"], "NVIDIA_TESLA_A100"),
            shape(4, &["a2-highgpu-4g"], "NVIDIA_TESLA_A100"),
            shape(8, &["a2-highgpu-8g"], "NVIDIA_TESLA_A100"),
            shape(16, &["a2-megagpu-16g"], "NVIDIA_TESLA_A100"),
        ],
        gke: &["nvidia-tesla-a100"],
        products: &["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"],
        has_rails: false,
    },
    GpuKind {
        name: "A100-80GB",
        vertex: &[
            shape(1, &["a2-ultragpu-1g"], "NVIDIA_A100_80GB"),
            shape(2, &["a2-ultragpu-2g"], "NVIDIA_A100_80GB"),
            shape(4, &["a2-ultragpu-4g"], "NVIDIA_A100_80GB"),
            shape(8, &["a2-ultragpu-8g"], "NVIDIA_A100_80GB"),
        ],
        gke: &["nvidia-a100-80gb"],
        products: &["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"],
        has_rails: false,
    },
    GpuKind {
        name: "H100-80GB",
        vertex: &[
            shape(1, &["a3-highgpu-1g"], "NVIDIA_H100_80GB"),
            shape(2, &["a3-highgpu-2g"], "NVIDIA_H100_80GB"),
            shape(4, &["a3-highgpu-4g"], "NVIDIA_H100_80GB"),
            shape(8, &["a3-highgpu-8g"], "NVIDIA_H100_80GB"),
            shape(8, &["a3-megagpu-8g"], "NVIDIA_H100_MEGA_80GB"),
        ],
        gke: &["nvidia-h100-80gb", "nvidia-h100-mega-80gb"],
        products: &["NVIDIA-H100-80GB-HBM3"],
        has_rails: true,
    },
    GpuKind { name: "H100-PCIe", vertex: &[], gke: &[], products: &["NVIDIA-H100-PCIe"], has_rails: false },
    GpuKind {
        name: "H200",
        vertex: &[shape(8, &["a3-ultragpu-8g"], "NVIDIA_H200_141GB")],
        gke: &["nvidia-h200-141gb"],
        products: &["NVIDIA-H200"],
        has_rails: true,
    },
    GpuKind {
        name: "B200",
        vertex: &[shape(8, &["a4-highgpu-8g"], "NVIDIA_B200")],
        gke: &["nvidia-b200"],
        products: &["NVIDIA-B200"],
        has_rails: true,
    },
];

impl GpuKind {
    /// The kind of this name, in letters of any case.
    ///
    /// # Errors
    /// If there is none; it names all.
    pub fn named(name: &str) -> Result<&'static Self> {
        let short =
            [("A100", "A100-80GB"), ("H100", "H100-80GB"), ("V100", "V100-16GB"), ("H200-141GB", "H200")];
        let full =
            short.iter().find(|(short, _)| short.eq_ignore_ascii_case(name)).map_or(name, |(_, full)| full);
        KINDS.iter().find(|kind| kind.name.eq_ignore_ascii_case(full)).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            Error::value("--gpu-kind", name, format!("kinds are {}", names.join(", ")))
        })
    }

    /// The GPUs that such a machine of Vertex AI always has: their kind, and how many.
    pub(crate) fn built_into(machine: &str) -> Option<(&'static str, usize)> {
        let sold = KINDS.iter().flat_map(|kind| kind.vertex.iter().map(|shape| (kind.name, shape)));
        let mut found = sold.filter(|(_, shape)| shape.machines.contains(&machine));
        found.next().filter(|_| !machine.starts_with(GENERAL)).map(|(kind, shape)| (kind, shape.gpus))
    }

    /// The names of the machines that Vertex AI offers with this many of them.
    pub(crate) fn machines_with(&self, gpus: usize) -> String {
        let shapes = || self.vertex.iter().filter(|shape| shape.gpus == gpus);
        let mut names = shapes().flat_map(|shape| shape.machines).copied().collect::<Vec<_>>().join(", ");
        if let Some(most) = shapes().map(|shape| shape.most_cpus).find(|most| *most > 0) {
            names.push_str(&format!(", and in others of {GENERAL} with at most {most} vCPUs"));
        }
        names
    }

    /// What Vertex AI offers with this many of them: with this machine if it is one of them, else with the usual one.
    pub(crate) fn vertex_shape(&self, gpus: usize, machine: Option<&str>) -> Result<&Shape> {
        let sold = || self.vertex.iter().filter(|shape| shape.gpus == gpus);
        let chosen = sold().find(|shape| machine.is_some_and(|machine| shape.fits(machine)));
        chosen.or_else(|| sold().next()).ok_or_else(|| {
            let mut counts: Vec<String> = self.vertex.iter().map(|shape| shape.gpus.to_string()).collect();
            counts.dedup();
            let allowed = match counts.as_slice() {
                [] => format!("Vertex AI does not offer {}", self.name),
                [one] => format!("Vertex AI offers {} in machines with {one}", self.name),
                [.., last] => format!(
                    "Vertex AI offers {} in machines with {} or {last}",
                    self.name,
                    counts[..counts.len() - 1].join(", ")
                ),
            };
            Error::value("--gpus", gpus, allowed)
        })
    }

    /// Settings of NCCL between nodes that it cannot find out by itself. Transports of a cloud's own (GPUDirect-TCPX, gIB, EFA) are plugins that the cluster
    /// installs, with settings of their own.
    pub(crate) fn nccl(&self, gpus: usize, interface: Option<&str>) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([("NCCL_DEBUG".to_owned(), "WARN".to_owned())]);
        // With a network for each GPU's number, messages stay within theirs.
        if self.has_rails && gpus == 8 {
            all.insert("NCCL_CROSS_NIC".into(), "0".into());
        }
        // The interface by which nodes find each other, where further ones carry data.
        if let Some(interface) = interface {
            all.insert("NCCL_SOCKET_IFNAME".into(), interface.into());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_the_name_of_its_own_gpus() {
        let h100 = GpuKind::named("h100").unwrap();
        let accelerator = |machine| h100.vertex_shape(8, machine).unwrap().accelerator;
        assert_eq!(accelerator(Some("a3-megagpu-8g")), "NVIDIA_H100_MEGA_80GB");
        assert_eq!(
            (accelerator(None), accelerator(Some("a3-highgpu-8g"))),
            ("NVIDIA_H100_80GB", "NVIDIA_H100_80GB")
        );
        assert_eq!(h100.machines_with(8), "a3-highgpu-8g, a3-megagpu-8g");
        for machine in ["n1-standard-8", "n1-highmem-2", "n1-highcpu-96", "e2-standard-4", "a2-highgpu-1g"] {
            assert_eq!(unknown_shape(machine), None, "{machine}");
        }
        for machine in ["n1-standard-7", "n1-highcpu-8", "n1-", "n1-ultramem-40"] {
            assert!(unknown_shape(machine).is_some_and(|known| known.contains("n1-highmem-N")), "{machine}");
        }
    }

    #[test]
    fn shapes_that_nobody_offers_are_refused_with_those_that_are_offered() {
        assert_eq!(
            GpuKind::named("a100-80gb").unwrap().vertex_shape(8, None).unwrap().machines,
            ["a2-ultragpu-8g"]
        );
        assert_eq!(GpuKind::named("h100").unwrap().name, "H100-80GB");
        let message = |kind: &str, gpus| {
            GpuKind::named(kind).unwrap().vertex_shape(gpus, None).unwrap_err().to_string()
        };
        assert_eq!(
            message("a100-80gb", 3),
            "--gpus 3 is not possible: Vertex AI offers A100-80GB in machines with 1, 2, 4 or 8"
        );
        assert_eq!(message("h200", 4), "--gpus 4 is not possible: Vertex AI offers H200 in machines with 8");
        assert_eq!(message("l40s", 1), "--gpus 1 is not possible: Vertex AI does not offer L40S");
        let unknown = GpuKind::named("a100-90gb").unwrap_err().to_string();
        assert!(
            unknown
                .starts_with("--gpu-kind a100-90gb is not possible: kinds are V100-16GB, T4, P4, P100, L4"),
            "{unknown}"
        );
    }
}
