//! Reading numbers and addresses from the environment.

use crate::{
    endpoint::{DEFAULT_MASTER_PORT, Endpoint},
    error::{Error, Result},
    parse::{count, port},
};

/// The environment. An empty variable counts as not set.
#[derive(Clone, Copy)]
pub struct Variables<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    pub fn get(self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// A number within bounds, if the variable is set.
    pub fn number(self, name: &str, least: usize, most: usize) -> Result<Option<usize>> {
        let parse = |text: String| {
            count(&text, least, most)
                .map_err(|range| Error::variable(name, &text, format!("it must be {range}")))
        };
        self.get(name).map(parse).transpose()
    }

    /// A number below `size`, which `size_name` gives.
    pub fn index(self, name: &str, size: usize, size_name: &str) -> Result<Option<usize>> {
        let parse = |text: String| {
            let range = format!("it must be a number from 0 to {} ({size_name} is {size})", size - 1);
            count(&text, 0, size - 1).map_err(|_| Error::variable(name, &text, range))
        };
        self.get(name).map(parse).transpose()
    }

    /// The value, or an error that names it and a variable of its set that is there.
    pub fn need<T>(self, value: Option<T>, name: &str, among: &[&str], hint: &str) -> Result<T> {
        value.ok_or_else(|| Error::Incomplete {
            present: among
                .iter()
                .find(|other| self.get(other).is_some())
                .unwrap_or(&"another variable")
                .to_string(),
            missing: name.into(),
            hint: hint.into(),
        })
    }

    /// A port, if the variable is set.
    pub fn port(self, name: &str) -> Result<Option<u16>> {
        let parse = |text: String| {
            port(&text).map_err(|_| Error::variable(name, &text, "it must be a port from 1 to 65535"))
        };
        self.get(name).map(parse).transpose()
    }

    /// The endpoint made of a host variable and a port variable (default 29500), if the host is set.
    pub fn endpoint(self, host_name: &str, port_name: &str) -> Result<Option<Endpoint>> {
        let port = self.port(port_name)?.unwrap_or(DEFAULT_MASTER_PORT);
        let parse = |host: String| {
            Endpoint::new(&host, port).map_err(|allowed| Error::variable(host_name, &host, allowed))
        };
        self.get(host_name).map(parse).transpose()
    }
}
