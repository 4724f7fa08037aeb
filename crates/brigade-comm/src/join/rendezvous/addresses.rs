//! Whether ranks can reach each other at the addresses of the interfaces that they have chosen.

use std::net::IpAddr;

use crate::join::interfaces::OPTION;
use crate::join::wire::message::RankAddress;

/// How a rank came to the rendezvous.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    host: String,
    /// The address of the interface that it has chosen.
    chosen: Option<IpAddr>,
    /// From where it reached rank 0; none for rank 0 itself.
    seen: Option<IpAddr>,
}

impl Arrival {
    pub(super) fn of(place: &RankAddress, seen: Option<IpAddr>) -> Self {
        Self { host: place.host.clone(), chosen: place.address, seen }
    }
}

/// Checks what all ranks have chosen together.
///
/// # Errors
/// A reason that names two of them, if one cannot reach the other.
pub(super) fn check_addresses(arrivals: &[Arrival]) -> Result<(), String> {
    let (with, without): (Vec<usize>, Vec<usize>) =
        (0..arrivals.len()).partition(|rank| arrivals[*rank].chosen.is_some());
    if !with.is_empty() && !without.is_empty() {
        return Err(format!(
            "ranks {with:?} choose interfaces ({OPTION}), ranks {without:?} do not; set it on every host, by the names or networks there, or on \
             none"
        ));
    }
    let chosen: Vec<(usize, IpAddr)> =
        arrivals.iter().enumerate().filter_map(|(rank, arrival)| Some((rank, arrival.chosen?))).collect();
    let Some(&(first, address)) = chosen.first() else { return Ok(()) };
    if let Some((other, its)) = chosen.iter().find(|(_, its)| its.is_ipv4() != address.is_ipv4()) {
        return Err(format!(
            "rank {first} is at {address} and rank {other} at {its} ({OPTION}), and IPv4 and IPv6 do not reach each other; choose \
             interfaces, addresses or networks of one kind"
        ));
    }
    // What a loopback interface reaches is one host, unless ranks only say that they are on several.
    let Some((rank, address)) = chosen.iter().find(|(_, address)| address.is_loopback()) else {
        return Ok(());
    };
    let own = &arrivals[*rank];
    let comes_from_outside =
        |other: &&Arrival| [own, other].iter().any(|it| it.seen.is_some_and(|seen| !seen.is_loopback()));
    let mut others = arrivals.iter().enumerate().filter(|(_, other)| other.host != own.host);
    match others.find(|(_, other)| comes_from_outside(other)) {
        Some((other, _)) => Err(format!(
            "rank {rank} is at {address} ({OPTION}), which rank {other} on another host cannot reach; choose an interface between the hosts"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(ranks: &[(&str, &str, &str)]) -> Vec<Arrival> {
        let arrival = |(host, chosen, seen): &(&str, &str, &str)| Arrival {
            host: (*host).to_owned(),
            chosen: chosen.parse().ok(),
            seen: seen.parse().ok(),
        };
        ranks.iter().map(arrival).collect()
    }

    #[test]
    fn ranks_that_reach_each_other_pass() {
        for ranks in [
            &[("a", "", ""), ("a", "", "127.0.0.1"), ("b", "", "10.0.0.2")][..],
            &[("a", "10.0.0.1", ""), ("a", "10.1.0.1", "127.0.0.1"), ("b", "10.0.0.2", "10.0.0.2")],
            &[("a", "fd00::1", ""), ("b", "fd00::2", "10.0.0.2")],
            &[("a", "127.0.0.1", ""), ("a", "127.0.0.2", "10.0.0.1")],
            &[("a", "127.0.0.1", ""), ("b", "127.0.0.2", "127.0.0.1")],
        ] {
            assert_eq!(check_addresses(&arrivals(ranks)), Ok(()), "{ranks:?}");
        }
    }

    #[test]
    fn ranks_that_do_not_are_named() {
        for (ranks, said) in [
            (
                &[("a", "10.0.0.1", ""), ("b", "", "10.0.0.2"), ("b", "", "10.0.0.2")][..],
                "ranks [0] choose interfaces (comm.interfaces), ranks [1, 2] do not; set it on every host",
            ),
            (
                &[("a", "10.0.0.1", ""), ("a", "10.0.0.1", "127.0.0.1"), ("b", "fd00::2", "10.0.0.2")],
                "rank 0 is at 10.0.0.1 and rank 2 at fd00::2 (comm.interfaces), and IPv4 and IPv6 do not reach",
            ),
            (
                &[("a", "10.0.0.1", ""), ("b", "127.0.0.1", "10.0.0.2")],
                "rank 1 is at 127.0.0.1 (comm.interfaces), which rank 0 on another host cannot reach",
            ),
            (
                &[("a", "127.0.0.1", ""), ("b", "127.0.0.1", "10.0.0.2")],
                "rank 0 is at 127.0.0.1 (comm.interfaces), which rank 1 on another host cannot reach",
            ),
        ] {
            let error = check_addresses(&arrivals(ranks)).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
