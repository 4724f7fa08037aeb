//! What pods need for a network of the nodes' own: annotations, devices, folders and rights.

use super::Kubernetes;
use super::names::{BYTES, qualified_name, quantity};
use super::pod::GPU;
use crate::error::{Error, Result};
use crate::job::no_secret;

/// The capability that the Pod Security level `restricted` admits.
const ADMITTED: &str = "NET_BIND_SERVICE";

/// How the names of resources begin that are measured in bytes.
const OF_BYTES: [&str; 2] = ["hugepages-", "ephemeral-storage"];

impl Kubernetes {
    pub(super) fn check_hardware(&self) -> Result<()> {
        for (key, value) in &self.annotations {
            qualified_name("--annotation", &format!("{key}={value}"), key, "an annotation's key")?;
            no_secret("--annotation", &format!("{key}={value}"))?;
        }
        self.resources.iter().try_for_each(|(name, amount)| resource(name, amount))?;
        for name in &self.capabilities {
            let is_name = !name.is_empty()
                && !name.starts_with("CAP_")
                && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
            if !is_name {
                let allowed =
                    "it must be the name of a capability in capital letters without CAP_, such as IPC_LOCK";
                return Err(Error::value("--capability", name, allowed));
            }
            if self.restricted && name != ADMITTED {
                let allowed =
                    format!("--restricted allows no capability except {ADMITTED}; leave one of the two out");
                return Err(Error::value("--capability", name, allowed));
            }
        }
        match self.host_paths.first() {
            Some(folder) if self.restricted => {
                let allowed = "--restricted allows no folders of the nodes; leave one of the two out";
                Err(Error::value("--host-path", format!("{}:{}", folder.host, folder.path), allowed))
            }
            _ => Ok(()),
        }
    }
}

/// Checks a resource that is not CPUs, memory or GPUs.
fn resource(name: &str, amount: &str) -> Result<()> {
    let option = "--resource";
    let given = format!("{name}={amount}");
    let instead = [("cpu", "--cpus"), ("memory", "--memory"), (GPU, "--gpus")];
    if let Some((_, other)) = instead.iter().find(|(known, _)| *known == name) {
        return Err(Error::value(option, given, format!("{other} says it")));
    }
    if OF_BYTES.iter().any(|beginning| name.starts_with(beginning)) {
        return quantity(
            option,
            &given,
            amount,
            &BYTES,
            "NAME=SIZE with a number of bytes, such as hugepages-2Mi=5120Mi",
        );
    }
    if !name.contains('/') {
        let allowed = "it must be NAME=N with a name that has a domain, such as vpc.amazonaws.com/efa=4";
        return Err(Error::value(option, given, allowed));
    }
    qualified_name(option, &given, name, "a resource's name")?;
    let is_count =
        amount.bytes().all(|byte| byte.is_ascii_digit()) && amount.parse().is_ok_and(|count: u32| count > 0);
    if is_count {
        Ok(())
    } else {
        Err(Error::value(option, given, "it must be NAME=N with a whole number, 1 or more"))
    }
}
