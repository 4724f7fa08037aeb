//! The adapters of this machine.

use std::fmt;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use burn::tensor::DeviceKind;
use burn::tensor::wgpu::wgpu;

/// What computes: a GPU, or a driver that computes on the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// As its driver names it.
    pub name: String,
    /// What reaches it.
    pub api: Api,
    /// What it is.
    pub kind: Kind,
    /// Its number among those of its kind, as Burn's [`DeviceKind`] counts.
    pub index: usize,
}

/// A graphics API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// Vulkan.
    Vulkan,
    /// Apple's Metal.
    Metal,
    /// Microsoft's Direct3D 12.
    Dx12,
}

/// What an adapter is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU that a virtual machine is given.
    Virtual,
    /// A driver that computes on the CPU.
    Software,
}

impl Adapter {
    /// What Burn knows it by.
    pub fn device_kind(&self) -> DeviceKind {
        match self.kind {
            Kind::Discrete => DeviceKind::DiscreteGpu(self.index),
            Kind::Integrated => DeviceKind::IntegratedGpu(self.index),
            Kind::Virtual => DeviceKind::VirtualGpu(self.index),
            Kind::Software => DeviceKind::Cpu,
        }
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.kind, self.api)
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vulkan => "Vulkan",
            Self::Metal => "Metal",
            Self::Dx12 => "DX12",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete GPU",
            Self::Integrated => "integrated GPU",
            Self::Virtual => "virtual GPU",
            Self::Software => "software",
        })
    }
}

/// The APIs that may be used, best first. GL is not: with Burn 0.22.1 on Mesa's GL driver, sums of large tensors were wrong.
const APIS: &[(Api, wgpu::Backend)] = if cfg!(target_os = "macos") {
    &[(Api::Metal, wgpu::Backend::Metal)]
} else {
    &[(Api::Vulkan, wgpu::Backend::Vulkan), (Api::Dx12, wgpu::Backend::Dx12)]
};

/// The adapters of the first graphics API that has a GPU, or else of the first that has anything, in the API's order;
/// looked up once a process. Adapters whose driver does not say what they are cannot be chosen, and are not listed.
pub fn adapters() -> &'static [Adapter] {
    static ADAPTERS: OnceLock<Vec<Adapter>> = OnceLock::new();
    ADAPTERS.get_or_init(|| settle(APIS.iter().map(|(api, backend)| of(*api, *backend))))
}

fn settle(by_api: impl Iterator<Item = Vec<Adapter>>) -> Vec<Adapter> {
    let mut software = Vec::new();
    for adapters in by_api {
        if adapters.iter().any(|adapter| adapter.kind != Kind::Software) {
            return adapters;
        }
        if software.is_empty() {
            software = adapters;
        }
    }
    software
}

fn of(api: Api, backend: wgpu::Backend) -> Vec<Adapter> {
    let descriptor = wgpu::InstanceDescriptor {
        backends: backend.into(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let instance = wgpu::Instance::new(descriptor);
    let mut listed: Vec<Adapter> = Vec::new();
    for adapter in at_once(instance.enumerate_adapters(backend.into())).unwrap_or_default() {
        let info = adapter.get_info();
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Software,
            wgpu::DeviceType::Other => continue,
        };
        let index = listed.iter().filter(|other| other.kind == kind).count();
        // Burn reaches the first driver in software only.
        if kind != Kind::Software || index == 0 {
            listed.push(Adapter { name: info.name, api, kind, index });
        }
    }
    listed
}

/// The result of a future that needs no waiting, as all of wgpu's enumeration outside browsers.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(api: Api, kind: Kind) -> Adapter {
        Adapter { name: "it".into(), api, kind, index: 0 }
    }

    #[test]
    fn the_first_api_with_a_gpu_is_taken_or_else_the_first_with_anything() {
        use Api::{Dx12, Vulkan};
        let software = vec![adapter(Vulkan, Kind::Software)];
        let warp = vec![adapter(Dx12, Kind::Software)];
        let both = vec![adapter(Dx12, Kind::Software), adapter(Dx12, Kind::Discrete)];
        let discrete = vec![adapter(Vulkan, Kind::Discrete)];
        for (by_api, taken) in [
            (vec![vec![], vec![]], vec![]),
            (vec![vec![], warp.clone()], warp.clone()),
            (vec![software.clone(), warp], software.clone()),
            (vec![software, both.clone()], both.clone()),
            (vec![discrete.clone(), both], discrete),
        ] {
            assert_eq!(settle(by_api.into_iter()), taken);
        }
    }

    #[test]
    fn adapters_are_described() {
        let adapter = Adapter { name: "Arc A770".into(), api: Api::Vulkan, kind: Kind::Discrete, index: 1 };
        assert_eq!(adapter.to_string(), "Arc A770 (discrete GPU, Vulkan)");
        assert_eq!(adapter.device_kind(), DeviceKind::DiscreteGpu(1));
    }
}
