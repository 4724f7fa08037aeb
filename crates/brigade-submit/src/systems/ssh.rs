//! Hosts that are reached by ssh: one connection each, which is also what keeps the job alive.

use brigade_launch::{Endpoint, exit};

use super::{no_buckets, shell};
use crate::error::{Error, Result};
use crate::job::Job;

/// Where the launchers of several hosts meet.
const PORT: u16 = 29_400;

/// Hosts, of which the first is node 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    /// The hosts, each as `[user@]host`.
    pub hosts: Vec<String>,
    /// The folder to start in, on each host.
    pub folder: Option<String>,
    /// Node 0's address for the others, where it is not the name by which ssh reaches it.
    pub address: Option<String>,
}

impl Ssh {
    /// What is needed and was not given.
    pub fn missing(&self, job: &Job) -> Option<Error> {
        let why =
            || format!("where the job runs, as many as --nodes, which is {}, separated by commas", job.nodes);
        self.hosts.is_empty().then(|| Error::Missing { option: "--hosts".into(), why: why() })
    }

    /// Checks what ssh does not allow, after [`Job::check`].
    ///
    /// # Errors
    /// If the system cannot run such a job.
    pub fn check(&self, job: &Job) -> Result<()> {
        self.missing(job).map_or(Ok(()), Err)?;
        if self.hosts.len() != job.nodes {
            let why = match self.hosts.len() {
                1 => format!("there is 1 host, but --nodes is {}", job.nodes),
                hosts => format!("there are {hosts} hosts, but --nodes is {}", job.nodes),
            };
            return Err(Error::value("--hosts", self.hosts.join(","), why));
        }
        for host in &self.hosts {
            let (user, name) = parts(host);
            let of_users = |letter: char| letter.is_ascii_alphanumeric() || "-_.@".contains(letter);
            let is_user = |user: &str| !user.is_empty() && user.chars().all(of_users);
            if host.starts_with('-') || !user.is_none_or(is_user) || Endpoint::new(name, PORT).is_err() {
                let allowed =
                    "each must be [user@]host, separated by commas; ports belong in ssh's own configuration";
                return Err(Error::value("--hosts", host, allowed));
            }
        }
        if let Some(address) = &self.address
            && Endpoint::new(address, PORT).is_err()
        {
            let allowed = format!("it must be a host name or an address, without a port, which is {PORT}");
            return Err(Error::value("--address", address, allowed));
        }
        no_buckets(job, "that all hosts share")
    }

    /// Where the launchers meet: on node 0.
    fn endpoint(&self) -> String {
        let first = self.hosts.first().map_or("", |host| parts(host).1);
        let address = self.address.as_deref().unwrap_or(first);
        // It was checked.
        Endpoint::new(address, PORT).map_or_else(|_| address.to_owned(), |endpoint| endpoint.to_string())
    }

    /// What a host runs. The first line of its input is the token, so that nobody sees it in a list of processes; when its input ends, because this side is gone or says so,
    /// the ranks save and exit.
    pub fn script(&self, job: &Job, node: usize) -> String {
        let placement = match job.nodes {
            1 => vec!["--standalone".to_owned()],
            _ => [
                ("--nnodes", job.node_count().to_string()),
                ("--node-rank", node.to_string()),
                ("--rdzv-endpoint", self.endpoint()),
            ]
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect(),
        };
        // Hosts of an elastic job may be long in coming.
        let patience = job.least_nodes.map_or_else(Vec::new, |_| job.patience());
        let mut script = String::from("IFS= read -r BRIGADE_TOKEN || exit 2\nexport BRIGADE_TOKEN\n");
        script.push_str(&self.setting(job));
        script.push_str(&format!(
            "exec 3<&0\n{} </dev/null 3<&- &\njob=$!\n\
             (while read -r _; do :; done; kill -TERM \"$job\") <&3 >/dev/null 2>&1 3<&- &\nwatch=$!\nexec 3<&-\n\
             wait \"$job\"\ncode=$?\nkill \"$watch\" 2>/dev/null\nexit \"$code\"\n",
            shell::line(&job.command(&[placement, patience].concat()))
        ));
        script
    }

    /// Where a host runs the program: with these variables, in this folder.
    fn setting(&self, job: &Job) -> String {
        let mut lines = String::new();
        for (name, value) in job.environment(None) {
            lines.push_str(&format!("export {name}={}\n", shell::quoted(&value)));
        }
        if let Some(folder) = &self.folder {
            lines.push_str(&format!("cd {} || exit 2\n", shell::quoted(folder)));
        }
        lines
    }

    /// The command that runs it.
    pub fn command(&self, job: &Job, node: usize) -> Vec<String> {
        self.on(node, &self.script(job, node))
    }

    /// The command that asks a host for its seconds since 1970, and succeeds if it has the folder and the program.
    pub(crate) fn question(&self, job: &Job, node: usize) -> Vec<String> {
        let program = shell::quoted(&job.program);
        self.on(
            node,
            &format!("date +%s\n{}command -v {program} >/dev/null || exit 127\n", self.setting(job)),
        )
    }

    /// The command that runs a script on a host.
    fn on(&self, node: usize, script: &str) -> Vec<String> {
        let script = format!("exec sh -c {}", shell::quoted(script));
        let mut words: Vec<String> =
            ["ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ConnectTimeout=30"]
                .map(str::to_owned)
                .to_vec();
        words.extend([destination(&self.hosts[node]), script]);
        words
    }
}

impl Ssh {
    /// Makes the first host whose launcher saved, as one does that is well when the job ends, node 0, if the present one was not there. `codes` are what the hosts ended with, and `gone` says which of them mean that a host
    /// was not there. Returns what to say, if there is anything to say.
    pub(crate) fn begin_elsewhere(&mut self, codes: &[u8], gone: &dyn Fn(u8) -> bool) -> Option<String> {
        let first = self.hosts.first().filter(|_| codes.first().is_some_and(|code| gone(*code)))?.clone();
        let there = codes.iter().position(|code| matches!(*code, exit::DONE | exit::PREEMPTED))?;
        if let Some(address) = &self.address {
            return Some(format!(
                "node 0 stays on {first}, as --address {address} is its address: without it, the job would go on without that host"
            ));
        }
        self.hosts.rotate_left(there);
        Some(format!("node 0 is now on {}, as {first} was lost", self.hosts[0]))
    }
}

/// The user, if there is one, and the host.
fn parts(host: &str) -> (Option<&str>, &str) {
    host.rsplit_once('@').map_or((None, host), |(user, name)| (Some(user), name))
}

/// What ssh calls a host, which knows no brackets around addresses.
fn destination(host: &str) -> String {
    host.replace(['[', ']'], "")
}
