//! `cargo xtask network`: hosts on one machine, with a network of any speed between them.
//!
//! Each host is a network namespace with one end of a cable, whose other end is at a bridge, or at a [relay] that delays what it
//! hands on; `tc tbf` limits the rate of each cable in both directions. Everything is inside namespaces of its own, of processes
//! and mounts too, and vanishes with the first process in them, which is killed when this one ends in whatever way.

mod relay;
mod traffic;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::Failed;
pub use traffic::Traffic;

/// Flags of `cargo xtask network`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The number of hosts.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    hosts: u8,
    /// Network interfaces of each host, every one with a network and a rate of its own: net, net1, net2, …
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    interfaces: u8,
    /// What each interface can send and receive per second, in the units of `tc`: 10gbit, 100mbit [default: no limit].
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Additional latency between hosts: 20ms, 500us [default: none].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// Write to this file what each host has sent by its first interface, every 10 ms, as a line of JSON: `time`, in seconds since 1970, and a list of `bytes`.
    #[arg(long, value_name = "FILE")]
    traffic: Option<PathBuf>,
    /// Make the hosts and run the command: for the process that is in the namespaces.
    #[arg(long, hide = true)]
    inside: bool,
    /// What runs on every host, and its arguments. Its environment has PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR,
    /// PET_MASTER_PORT, GLOO_SOCKET_IFNAME and BRIGADE_TOKEN, which Brigade and torchrun's programs understand.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<OsString>,
}

const NEEDS: &str = "cargo xtask network needs Linux, the packages iproute2 (ip, tc) and util-linux (unshare, setpriv, mount), and root's \
                     rights or a system where every user may make namespaces (sysctl kernel.unprivileged_userns_clone, \
                     user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)";

/// Runs a command on every host of a network that exists for as long as it runs.
///
/// # Errors
/// [`Failed`], with the status of the first command that failed; a message that says what is missing where this machine allows no
/// such network.
pub fn run(args: &Args) -> Result<()> {
    let status = if args.inside { inside(args)? } else { outside(args)? };
    if status.success() { Ok(()) } else { Err(Failed(status).into()) }
}

/// This program, to be started again in namespaces of its own.
///
/// # Errors
/// A message that says what is missing where this machine allows none.
pub fn in_namespaces() -> Result<Command> {
    let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let entering = || {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare"]).args(namespaces);
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command
    };
    let tried = entering().arg("true").output().context(NEEDS)?;
    ensure!(tried.status.success(), "{}{NEEDS}", String::from_utf8_lossy(&tried.stderr));
    let mut command = entering();
    command.arg(std::env::current_exe()?);
    Ok(command)
}

fn outside(args: &Args) -> Result<ExitStatus> {
    let mut command = in_namespaces()?;
    command.args(["network", "--inside", "--hosts", &args.hosts.to_string()]);
    command.args(["--interfaces", &args.interfaces.to_string()]);
    command.args(args.rate.iter().flat_map(|rate| ["--rate", rate]));
    command.args(args.delay.map(|delay| format!("--delay={}us", delay.as_micros())));
    command.args(args.traffic.iter().flat_map(|file| [OsStr::new("--traffic"), file.as_os_str()]));
    command.arg("--").args(&args.command);
    Ok(command.status()?)
}

/// `20ms`, `500us` or `1s`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "us" => Some(1),
        "ms" => Some(1_000),
        "s" => Some(1_000_000),
        _ => None,
    };
    let micros =
        digits.parse().ok().zip(unit).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
    let micros = micros.filter(|micros| *micros <= 10_000_000);
    micros
        .map(Duration::from_micros)
        .ok_or_else(|| "it must be at most 10 s, as 500us, 20ms or 1s".to_owned())
}

/// Lays the cables and runs the command on each host. Gives the first failure, or success.
fn inside(args: &Args) -> Result<ExitStatus> {
    add_hosts(args.hosts)?;
    let ports = |network| (0..args.hosts).map(|host| port(host, network)).collect::<Vec<String>>();
    for network in 0..args.interfaces {
        (0..args.hosts).try_for_each(|host| lay_cable(host, network, args.rate.as_deref()))?;
        match args.delay.filter(|delay| !delay.is_zero()) {
            None => connect(network, &ports(network))?,
            Some(delay) => relay::start(&ports(network), delay).context(NEEDS)?,
        }
    }
    let recorder = args.traffic.as_deref().map(|file| traffic::record(file, ports(0))).transpose()?;
    let token = std::env::var_os("BRIGADE_TOKEN").map_or_else(random, Ok)?;
    let start = |host: u8| -> Result<Child> {
        let mut command = on_host(host);
        command.args(&args.command);
        command.env("PET_NNODES", args.hosts.to_string()).env("PET_NODE_RANK", host.to_string());
        command
            .env("PET_MASTER_ADDR", address(0, 0))
            .env("PET_MASTER_PORT", "29400")
            .env("GLOO_SOCKET_IFNAME", "net")
            .env("BRIGADE_TOKEN", &token);
        command.spawn().context("cannot start ip netns exec")
    };
    let mut running = (0..args.hosts).map(start).collect::<Result<Vec<Child>>>()?;
    let mut ended = ExitStatus::from_raw(0);
    for child in &mut running {
        let status = child.wait()?;
        if ended.success() {
            ended = status;
        }
    }
    recorder.map_or(Ok(()), traffic::Recorder::finish)?;
    Ok(ended)
}

/// Hosts that a switch connects, for the process that is [in the namespaces](in_namespaces).
pub fn connected_hosts(hosts: u8) -> Result<()> {
    add_hosts(hosts)?;
    (0..hosts).try_for_each(|host| lay_cable(host, 0, None))?;
    connect(0, &(0..hosts).map(|host| port(host, 0)).collect::<Vec<_>>())
}

/// What runs the command that is added to it on a host.
pub fn on_host(host: u8) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &name(host)]);
    command
}

/// A host's address in the first network.
pub fn address_of(host: u8) -> String {
    address(host, 0)
}

/// Cuts a host off the first network, or connects it again: nobody is told, what is sent gets lost.
pub fn set_connected(host: u8, is_connected: bool) -> Result<()> {
    let state = if is_connected { "up" } else { "down" };
    system("ip", &format!("link set {} {state}", port(host, 0)))
}

fn add_hosts(hosts: u8) -> Result<()> {
    // The names of namespaces are files, which are to vanish as well.
    system("mount", "-t tmpfs none /run")?;
    system("ip", "link set lo up")?;
    (0..hosts).try_for_each(add_host)
}

/// A switch between the ends of the cables.
fn connect(network: u8, ports: &[String]) -> Result<()> {
    let bridge = numbered("bridge", network);
    system("ip", &format!("link add {bridge} type bridge"))?;
    system("ip", &format!("link set {bridge} up"))?;
    ports.iter().try_for_each(|port| system("ip", &format!("link set {port} master {bridge}")))
}

fn add_host(host: u8) -> Result<()> {
    let namespace = name(host);
    system("ip", &format!("netns add {namespace}"))?;
    system("ip", &format!("-n {namespace} link set lo up"))
}

fn lay_cable(host: u8, network: u8, rate: Option<&str>) -> Result<()> {
    let (namespace, port, net) = (name(host), port(host, network), numbered("net", network));
    system("ip", &format!("link add {port} type veth peer name {net} netns {namespace}"))?;
    system("ip", &format!("link set {port} up"))?;
    system("ip", &format!("-n {namespace} addr add {}/24 dev {net}", address(host, network)))?;
    system("ip", &format!("-n {namespace} link set {net} up"))?;
    if let Some(rate) = rate {
        // The burst is what a packet of segments, which the kernel hands over as one, can need at most.
        let limit = format!("root tbf rate {rate} burst 256kb latency 50ms");
        system("tc", &format!("qdisc add dev {port} {limit}"))?;
        system("tc", &format!("-n {namespace} qdisc add dev {net} {limit}"))?;
    }
    Ok(())
}

fn name(host: u8) -> String {
    format!("host{host}")
}

/// The end of a host's cable that is not in it.
fn port(host: u8, network: u8) -> String {
    format!("port{host}.{network}")
}

fn address(host: u8, network: u8) -> String {
    format!("10.77.{network}.{}", host + 1)
}

/// A name for each network; that of the first has no number.
fn numbered(name: &str, network: u8) -> String {
    if network == 0 { name.to_owned() } else { format!("{name}{network}") }
}

/// Runs a command of the system with these words.
fn system(program: &str, words: &str) -> Result<()> {
    let done = Command::new(program).args(words.split(' ')).output();
    let done = done.with_context(|| format!("cannot start {program}; {NEEDS}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{program} {words}: {}; {NEEDS}", said.trim());
    }
    Ok(())
}

/// A secret for the ranks.
fn random() -> Result<OsString> {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    Ok(random.context("cannot make a secret; set BRIGADE_TOKEN")?.trim().replace('-', "").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_a_unit() {
        let micros = |text| duration(text).map(|delay| delay.as_micros());
        assert_eq!([micros("500us"), micros("20ms"), micros("1s")], [Ok(500), Ok(20_000), Ok(1_000_000)]);
        for wrong in ["20", "ms", "-1ms", "1.5ms", "11s", "18446744073709551615s", "1 ms", "1m"] {
            assert!(duration(wrong).is_err_and(|error| error.contains("20ms")), "{wrong}");
        }
    }
}
