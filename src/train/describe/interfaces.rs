//! The line on the interfaces by which hosts reach each other.

use std::net::IpAddr;

use brigade_comm::Locality;
use brigade_report::counted;

/// Hosts whose addresses are listed.
const LISTED: usize = 4;

/// By which addresses the ranks of several hosts reach each other, if interfaces were chosen for that.
pub(super) fn interfaces_line(places: &[Locality]) -> Option<String> {
    let mut hosts: Vec<Vec<IpAddr>> = Vec::new();
    for place in places {
        hosts.resize(hosts.len().max(place.host + 1), Vec::new());
        let (address, known) = (place.address?, &mut hosts[place.host]);
        if !known.contains(&address) {
            known.push(address);
        }
    }
    let host = |(number, addresses): (usize, &Vec<IpAddr>)| {
        let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        format!("host {number} by {}", addresses.join(" and "))
    };
    let listed: Vec<String> = hosts.iter().enumerate().take(LISTED).map(host).collect();
    let more = hosts.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(", and {}", counted(more, "other host")) } else { String::new() };
    (hosts.len() > 1).then(|| format!("data between hosts: {}{more} (comm.interfaces)", listed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(addresses: &[(usize, &str)]) -> Vec<Locality> {
        let place = |(host, address): &(usize, &str)| Locality {
            host: *host,
            address: address.parse().ok(),
            ..Locality::default()
        };
        addresses.iter().map(place).collect()
    }

    #[test]
    fn each_host_has_its_addresses_once() {
        let chosen = [(0, "10.0.0.1"), (0, "10.1.0.1"), (0, "10.0.0.1"), (1, "10.0.0.2"), (1, "10.1.0.2")];
        assert_eq!(
            interfaces_line(&places(&chosen)).as_deref(),
            Some(
                "data between hosts: host 0 by 10.0.0.1 and 10.1.0.1, host 1 by 10.0.0.2 and 10.1.0.2 (comm.interfaces)"
            )
        );
        let many: Vec<_> = (0..7).map(|host| (host, "10.0.0.1")).collect();
        assert!(
            interfaces_line(&places(&many))
                .is_some_and(|line| line.ends_with("host 3 by 10.0.0.1, and 3 other hosts (comm.interfaces)"))
        );
    }

    #[test]
    fn nothing_is_said_where_nothing_was_chosen_or_there_is_one_host() {
        assert_eq!(interfaces_line(&places(&[(0, ""), (1, "")])), None);
        assert_eq!(interfaces_line(&places(&[(0, "10.0.0.1"), (0, "10.1.0.1")])), None);
        assert_eq!(interfaces_line(&[]), None);
    }
}
