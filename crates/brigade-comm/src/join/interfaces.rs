//! The network interfaces by which a host's ranks reach other hosts.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;
use ipnet::IpNet;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::error::Error;

/// The setting that chooses them, in messages.
pub(in crate::join) const OPTION: &str = "comm.interfaces";

/// How long a new interface, as a container gets one, may take until it carries something: the kernel says so up to a second later.
const SETTLED: Duration = Duration::from_secs(2);

/// The addresses of the chosen interfaces, in the order of the list, and which of them this rank's is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::join) struct Interfaces {
    /// At least one.
    addresses: Vec<IpNet>,
    own: IpNet,
}

impl Interfaces {
    /// The interfaces of this host that a list names, of which the rank with this number on the host takes one; none if the list is empty.
    ///
    /// # Errors
    /// [`Error::Option`] if one cannot be used, with what there is.
    pub(in crate::join) fn of(list: &[String], local_rank: usize) -> Result<Option<Self>, Error> {
        if list.is_empty() {
            return Ok(None);
        }
        let deadline = Instant::now() + SETTLED;
        loop {
            match choose(list, local_rank, &found()?) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                outcome => return outcome.map(Some),
            }
        }
    }

    /// The address at which other hosts reach this rank.
    pub(in crate::join) fn own(&self) -> IpAddr {
        self.own.addr()
    }

    /// The address from which this rank connects to another: its own, unless only another one is in the same network.
    pub(in crate::join) fn towards(&self, peer: IpAddr) -> IpAddr {
        let mut neighbours = self.addresses.iter().filter(|network| network.contains(&peer));
        match self.own.contains(&peer) {
            true => self.own(),
            false => neighbours.next().unwrap_or(&self.own).addr(),
        }
    }
}

fn choose(list: &[String], local_rank: usize, found: &[Interface]) -> Result<Interfaces, Error> {
    let addresses = list.iter().map(|entry| address_of(entry, found)).collect::<Result<Vec<_>, _>>();
    let addresses = addresses.map_err(|why| {
        let found: Vec<String> = found.iter().map(Interface::to_string).collect();
        let allowed = format!(
            "{why}; names, addresses and networks (as in 10.0.0.0/24) of this host's interfaces are allowed, which are {}",
            found.join(", ")
        );
        Error::Option { option: OPTION, given: format!("{list:?}"), allowed }
    })?;
    let own = addresses[local_rank % addresses.len()];
    Ok(Interfaces { addresses, own })
}

/// The address that an entry of the list stands for.
fn address_of(entry: &str, found: &[Interface]) -> Result<IpNet, String> {
    let (interface, address) = if let Ok(address) = entry.parse::<IpAddr>() {
        find(found, |interface, network| {
            // All of a loopback interface's network is this host.
            network.addr() == address || interface.is_loopback() && network.contains(&address)
        })
        .and_then(|(interface, network)| Some((interface, IpNet::new(address, network.prefix_len()).ok()?)))
        .ok_or_else(|| format!("no interface of this host has the address {address}"))?
    } else if let Ok(network) = entry.parse::<IpNet>() {
        find(found, |_, address| network.contains(&address.addr()))
            .ok_or_else(|| format!("no interface of this host has an address in {network}"))?
    } else {
        let interface = found.iter().find(|interface| interface.name == entry);
        let interface = interface.ok_or_else(|| format!("this host has no interface {entry:?}"))?;
        let address = interface.addresses.iter().min_by_key(|address| address.addr().is_ipv6());
        (interface, *address.ok_or_else(|| format!("{entry} has no address"))?)
    };
    match interface.trouble() {
        Some(trouble) => Err(format!("{} {trouble}", interface.name)),
        None => Ok(address),
    }
}

/// The first address that fits, on an interface that works if there is one.
fn find(found: &[Interface], fits: impl Fn(&Interface, &IpNet) -> bool) -> Option<(&Interface, IpNet)> {
    let all = found.iter().flat_map(|interface| {
        interface.addresses.iter().filter(|address| fits(interface, address)).map(move |it| (interface, *it))
    });
    all.min_by_key(|(interface, _)| interface.trouble().is_some())
}

/// An interface of this host.
#[derive(Debug, Clone)]
struct Interface {
    name: String,
    flags: InterfaceFlags,
    /// Each with its network. Without those that are of no use beyond one cable.
    addresses: Vec<IpNet>,
}

impl Interface {
    fn is_loopback(&self) -> bool {
        self.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    }

    /// Why nothing can be sent through it, if that is so.
    fn trouble(&self) -> Option<&'static str> {
        match self.flags {
            flags if !flags.contains(InterfaceFlags::IFF_UP) => Some("is down"),
            flags if !flags.contains(InterfaceFlags::IFF_RUNNING) => Some("has no carrier"),
            _ => None,
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut facts: Vec<String> =
            self.addresses.iter().map(|address| address.addr().to_string()).collect();
        facts.extend(self.addresses.is_empty().then(|| "has no address".to_owned()));
        facts.extend(self.trouble().map(str::to_owned));
        write!(f, "{} ({})", self.name, facts.join(", "))
    }
}

/// All interfaces of this host, by name.
fn found() -> Result<Vec<Interface>, Error> {
    let failed = |error| Error::system("list this host's network interfaces", error);
    let mut found: SortedMap<String, Interface> = SortedMap::new();
    for InterfaceAddress { interface_name, flags, address, netmask, .. } in getifaddrs().map_err(failed)? {
        let address = address.as_ref().and_then(ip);
        let network = address.zip(netmask.as_ref().and_then(ip));
        let network = network.and_then(|(address, mask)| IpNet::with_netmask(address, mask).ok());
        let interface = found.entry(interface_name.clone()).or_insert(Interface {
            name: interface_name,
            flags,
            addresses: Vec::new(),
        });
        interface.addresses.extend(network.filter(|network| !is_link_local(network.addr())));
    }
    Ok(found.into_values().collect())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// Whether an address means something only together with an interface.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if Ipv6Addr::is_unicast_link_local(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, flags: InterfaceFlags, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Interface { name: name.into(), flags, addresses }
    }

    fn host() -> [Interface; 6] {
        let works = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        [
            interface("lo", works | InterfaceFlags::IFF_LOOPBACK, &["127.0.0.1/8", "::1/128"]),
            interface("eth0", works, &["fd00::1/64", "10.0.0.1/24"]),
            interface("eth1", works, &["10.0.1.1/24"]),
            interface("ib0", InterfaceFlags::IFF_UP, &["10.0.2.1/24"]),
            interface("off", InterfaceFlags::empty(), &["10.0.1.9/24"]),
            interface("bare", works, &[]),
        ]
    }

    fn chosen(list: &[&str], local_rank: usize) -> Result<Interfaces, String> {
        let list: Vec<String> = list.iter().map(|entry| (*entry).to_owned()).collect();
        choose(&list, local_rank, &host()).map_err(|error| error.to_string())
    }

    #[test]
    fn ranks_of_a_host_take_turns() {
        let own = |local_rank| chosen(&["eth1", "eth0"], local_rank).unwrap().own().to_string();
        assert_eq!([0, 1, 2, 3, 5].map(own), ["10.0.1.1", "10.0.0.1", "10.0.1.1", "10.0.0.1", "10.0.0.1"]);
    }

    #[test]
    fn entries_are_names_addresses_and_networks() {
        for (entry, address) in [
            ("eth0", "10.0.0.1"),
            ("10.0.1.1", "10.0.1.1"),
            ("fd00::1", "fd00::1"),
            ("fd00::/16", "fd00::1"),
            ("10.0.0.0/23", "10.0.0.1"),
            ("10.0.1.0/24", "10.0.1.1"),
            ("127.0.0.2", "127.0.0.2"),
        ] {
            assert_eq!(chosen(&[entry], 7).unwrap().own().to_string(), address, "{entry}");
        }
        assert_eq!(Interfaces::of(&[], 3), Ok(None));
    }

    #[test]
    fn a_rank_connects_within_the_network_of_the_other() {
        let from = |local_rank, peer: &str| {
            chosen(&["eth0", "eth1"], local_rank).unwrap().towards(peer.parse().unwrap()).to_string()
        };
        assert_eq!([from(0, "10.0.0.2"), from(0, "10.0.1.2")], ["10.0.0.1", "10.0.1.1"]);
        assert_eq!([from(1, "10.0.0.2"), from(1, "10.0.1.2")], ["10.0.0.1", "10.0.1.1"]);
        assert_eq!([from(0, "192.168.7.7"), from(1, "192.168.7.7")], ["10.0.0.1", "10.0.1.1"]);
        let loopback = chosen(&["127.0.0.1", "127.0.0.2"], 1).unwrap();
        assert_eq!(loopback.towards("127.0.0.1".parse().unwrap()).to_string(), "127.0.0.2");
    }

    #[test]
    fn what_cannot_be_used_is_named_with_what_there_is() {
        for (entry, why) in [
            ("eth9", "this host has no interface \"eth9\""),
            ("", "this host has no interface \"\""),
            ("bare", "bare has no address"),
            ("off", "off is down"),
            ("10.0.1.9", "off is down"),
            ("ib0", "ib0 has no carrier"),
            ("10.9.9.9", "no interface of this host has the address 10.9.9.9"),
            ("10.9.0.0/16", "no interface of this host has an address in 10.9.0.0/16"),
        ] {
            let said = chosen(&["eth0", entry], 0).unwrap_err();
            let begins =
                format!("comm.interfaces = [\"eth0\", {entry:?}]: {why}; names, addresses and networks");
            assert!(said.starts_with(&begins), "{said}");
            let ends = "lo (127.0.0.1, ::1), eth0 (fd00::1, 10.0.0.1), eth1 (10.0.1.1), ib0 (10.0.2.1, has no carrier), off (10.0.1.9, is \
                        down), bare (has no address)";
            assert!(said.ends_with(ends), "{said}");
        }
    }

    #[test]
    fn this_host_has_a_loopback_interface() {
        let found = found().unwrap();
        let loopback = found.iter().find(|interface| interface.is_loopback()).unwrap();
        assert!(loopback.addresses.contains(&"127.0.0.1/8".parse().unwrap()), "{loopback}");
        assert!(loopback.trouble().is_none());
    }
}
