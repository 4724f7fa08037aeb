//! The adapters of this machine.

use std::fmt;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use burn::tensor::DeviceKind;
use burn::tensor::wgpu::wgpu;

/// An adapter of wgpu: a GPU, or a driver that computes on the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Its name, from the driver.
    pub name: String,
    /// The graphics API that it is used through.
    pub api: GraphicsApi,
    /// Its kind.
    pub kind: AdapterKind,
    /// Its index among those of its kind, as in Burn's [`DeviceKind`].
    pub index: usize,
}

/// A graphics API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GraphicsApi {
    /// Vulkan.
    Vulkan,
    /// Apple's Metal.
    Metal,
    /// Microsoft's Direct3D 12.
    Dx12,
}

/// The kinds of adapters, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU that is passed to a virtual machine.
    Virtual,
    /// A driver that computes on the CPU.
    Software,
}

impl Adapter {
    /// Its name in Burn.
    pub fn device_kind(&self) -> DeviceKind {
        match self.kind {
            AdapterKind::Discrete => DeviceKind::DiscreteGpu(self.index),
            AdapterKind::Integrated => DeviceKind::IntegratedGpu(self.index),
            AdapterKind::Virtual => DeviceKind::VirtualGpu(self.index),
            AdapterKind::Software => DeviceKind::Cpu,
        }
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.kind, self.api)
    }
}

impl fmt::Display for GraphicsApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vulkan => "Vulkan",
            Self::Metal => "Metal",
            Self::Dx12 => "DX12",
        })
    }
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete GPU",
            Self::Integrated => "integrated GPU",
            Self::Virtual => "virtual GPU",
            Self::Software => "software",
        })
    }
}

/// The APIs that may be used, best first. GL is not one of them: with Burn 0.22.1 on Mesa's GL driver, sums of large tensors were
/// wrong.
const APIS: &[(GraphicsApi, wgpu::Backend)] = if cfg!(target_os = "macos") {
    &[(GraphicsApi::Metal, wgpu::Backend::Metal)]
} else {
    &[(GraphicsApi::Vulkan, wgpu::Backend::Vulkan), (GraphicsApi::Dx12, wgpu::Backend::Dx12)]
};

/// The adapters of the first graphics API that has a GPU, or else of the first that has any adapter, in the API's order. They are
/// enumerated once per process. Adapters of an unknown kind cannot be selected, and are not listed.
pub fn adapters() -> &'static [Adapter] {
    static ADAPTERS: OnceLock<Vec<Adapter>> = OnceLock::new();
    ADAPTERS.get_or_init(|| select_api(APIS.iter().map(|(api, backend)| enumerate(*api, *backend))))
}

fn select_api(by_api: impl Iterator<Item = Vec<Adapter>>) -> Vec<Adapter> {
    let mut software = Vec::new();
    for adapters in by_api {
        if adapters.iter().any(|adapter| adapter.kind != AdapterKind::Software) {
            return adapters;
        }
        if software.is_empty() {
            software = adapters;
        }
    }
    software
}

fn enumerate(api: GraphicsApi, backend: wgpu::Backend) -> Vec<Adapter> {
    let descriptor = wgpu::InstanceDescriptor {
        backends: backend.into(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let instance = wgpu::Instance::new(descriptor);
    let mut listed: Vec<Adapter> = Vec::new();
    for adapter in poll_once(instance.enumerate_adapters(backend.into())).unwrap_or_default() {
        let info = adapter.get_info();
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => continue,
        };
        let index = listed.iter().filter(|other| other.kind == kind).count();
        // Burn can only use the first software driver.
        if kind != AdapterKind::Software || index == 0 {
            listed.push(Adapter { name: info.name, api, kind, index });
        }
    }
    listed
}

/// The result of a future that is ready at once, as those of wgpu's enumeration are outside browsers.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(api: GraphicsApi, kind: AdapterKind) -> Adapter {
        Adapter { name: "it".into(), api, kind, index: 0 }
    }

    #[test]
    fn the_first_api_with_a_gpu_is_selected_or_else_the_first_with_an_adapter() {
        use GraphicsApi::{Dx12, Vulkan};
        let software = vec![adapter(Vulkan, AdapterKind::Software)];
        let warp = vec![adapter(Dx12, AdapterKind::Software)];
        let both = vec![adapter(Dx12, AdapterKind::Software), adapter(Dx12, AdapterKind::Discrete)];
        let discrete = vec![adapter(Vulkan, AdapterKind::Discrete)];
        for (by_api, selected) in [
            (vec![vec![], vec![]], vec![]),
            (vec![vec![], warp.clone()], warp.clone()),
            (vec![software.clone(), warp], software.clone()),
            (vec![software, both.clone()], both.clone()),
            (vec![discrete.clone(), both], discrete),
        ] {
            assert_eq!(select_api(by_api.into_iter()), selected);
        }
    }

    #[test]
    fn adapters_are_described() {
        let adapter = Adapter {
            name: "Arc A770".into(),
            api: GraphicsApi::Vulkan,
            kind: AdapterKind::Discrete,
            index: 1,
        };
        assert_eq!(adapter.to_string(), "Arc A770 (discrete GPU, Vulkan)");
        assert_eq!(adapter.device_kind(), DeviceKind::DiscreteGpu(1));
    }
}
