//! Whether a node fits into node 0's world.

use super::message::NodeJoinRequest;
use crate::text_difference::first_difference;

/// Why it does not, if so.
pub fn mismatch(own: &NodeJoinRequest, other: &NodeJoinRequest) -> Option<String> {
    let NodeJoinRequest { version, node, nproc, nodes: (least, most), configuration, .. } = other;
    let (min, max) = own.nodes;
    if *version != own.version {
        return Some(format!("its protocol has version {version}, but node 0 has {}", own.version));
    }
    if (*least, *most) != (min, max) {
        return Some(format!("--nnodes {least}:{most} is given there, and {min}:{max} on node 0"));
    }
    if *node == 0 || *node >= max {
        let allowed = format!("it must be from 1 to {} (--nnodes is {min}:{max})", max - 1);
        return Some(format!("--node-rank {node} is not valid beside node 0: {allowed}"));
    }
    if *nproc != own.nproc {
        let given = format!("--nproc-per-node is {nproc} there, and {} on node 0", own.nproc);
        return Some(format!("{given}; all nodes start the same number of ranks"));
    }
    first_difference(&own.configuration, configuration).map(|(here, there)| {
        format!("its configuration differs from node 0's: {there} there, {here} on node 0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mismatch_is_named() {
        let own = NodeJoinRequest {
            version: 1,
            node: 0,
            host: "h".into(),
            nproc: 2,
            nodes: (2, 4),
            configuration: "[train]\nseed = 7".into(),
            restart_count: 0,
            failures: 0,
        };
        let fits = NodeJoinRequest { node: 3, restart_count: 9, host: "i".into(), ..own.clone() };
        assert_eq!(mismatch(&own, &fits), None);
        let others = [
            (NodeJoinRequest { version: 2, ..fits.clone() }, "version 2"),
            (
                NodeJoinRequest { nodes: (2, 3), ..fits.clone() },
                "--nnodes 2:3 is given there, and 2:4 on node 0",
            ),
            (NodeJoinRequest { node: 4, ..fits.clone() }, "from 1 to 3"),
            (NodeJoinRequest { node: 0, ..fits.clone() }, "from 1 to 3"),
            (NodeJoinRequest { nproc: 1, ..fits.clone() }, "--nproc-per-node is 1 there, and 2 on node 0"),
            (
                NodeJoinRequest { configuration: "[train]\nseed = 8".into(), ..fits.clone() },
                "`seed = 8` there, `seed = 7` on node 0",
            ),
            (
                NodeJoinRequest { configuration: "[train]".into(), ..fits },
                "nothing there, `seed = 7` on node 0",
            ),
        ];
        for (other, said) in others {
            let message = mismatch(&own, &other).unwrap();
            assert!(message.contains(said), "{message}");
        }
    }
}
