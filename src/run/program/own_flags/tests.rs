#![allow(clippy::unwrap_used)]

use super::*;
use crate::settings::StandardFlags;

#[derive(Debug, Args)]
struct Flags {
    #[arg(long)]
    count: u8,
    #[arg(long, short, action = clap::ArgAction::Append)]
    word: Vec<String>,
    #[arg(long)]
    odd: bool,
    file: Option<String>,
}

fn standard() -> Command {
    StandardFlags::augment_args(Command::new(""))
}

#[test]
fn values_of_a_run_come_back_where_none_is_given() {
    let own = OwnFlags::of::<Flags>();
    own.check(&standard()).unwrap();
    let command = Flags::augment_args(Command::new("a"));
    let read = |line: &str, saved: &Table| {
        let words = line.split(' ').map(OsString::from).collect();
        let (command, words) = own.with_saved(command.clone(), words, saved);
        command.try_get_matches_from(words)
    };
    let first = read("a --count 007 --word x --word 3 f", &Table::new()).unwrap();
    let saved = own.table(&first);
    assert_eq!(
        toml::to_string(&saved).unwrap(),
        "count = \"007\"\nword = [\"x\", 3]\nodd = false\nfile = \"f\"\n"
    );
    assert_eq!(own.table(&read("a", &saved).unwrap()), saved);
    let changed = own.table(&read("a --odd --word y", &saved).unwrap());
    assert_eq!(
        toml::to_string(&changed).unwrap(),
        "count = \"007\"\nword = \"y\"\nodd = true\nfile = \"f\"\n"
    );
    assert!(read("a", &Table::new()).unwrap_err().to_string().contains("--count"));
}

/// What a command line leads to with a program's own flags, where a run has these.
fn table_of<A: Args>(line: &str, saved: &Table) -> Result<Table, clap::Error> {
    let (own, words) = (OwnFlags::of::<A>(), line.split(' ').map(OsString::from).collect());
    let (command, words) = own.with_saved(A::augment_args(Command::new("a")), words, saved);
    Ok(own.table(&command.try_get_matches_from(words)?))
}

#[test]
fn saved_values_are_what_other_flags_require() {
    #[derive(Debug, Args)]
    struct Linked {
        #[arg(long, required_unless_present = "_second")]
        _first: Option<String>,
        #[arg(long)]
        _second: Option<String>,
        #[arg(long, requires = "_second")]
        _third: Option<String>,
        #[arg(long, num_args = 2)]
        _pair: Vec<String>,
    }
    let saved = table_of::<Linked>("a --first=-x --second b --third c --pair p q", &Table::new()).unwrap();
    assert_eq!(table_of::<Linked>("a", &saved).unwrap(), saved);
    let other = table_of::<Linked>("a --third d", &saved).unwrap();
    assert_eq!((other["first"].as_str(), other["third"].as_str()), (Some("-x"), Some("d")));
    let first = table_of::<Linked>("a --first a", &Table::new()).unwrap();
    assert_eq!(table_of::<Linked>("a", &first).unwrap(), first);
    let missing = table_of::<Linked>("a --third d", &first).unwrap_err().to_string();
    assert!(missing.contains("--second"), "{missing}");
}

#[test]
fn a_saved_member_is_enough_for_a_group_and_gives_way_to_another_one() {
    #[derive(Debug, Args)]
    #[group(required = true, multiple = false)]
    struct Source {
        #[arg(long)]
        _file: Option<String>,
        #[arg(long)]
        _url: Option<String>,
    }
    let saved = table_of::<Source>("a --file x", &Table::new()).unwrap();
    assert_eq!(toml::to_string(&saved).unwrap(), "file = \"x\"\n");
    assert_eq!(table_of::<Source>("a", &saved).unwrap(), saved);
    let other = table_of::<Source>("a --url y", &saved).unwrap();
    assert_eq!(toml::to_string(&other).unwrap(), "url = \"y\"\n");
    let missing = table_of::<Source>("a", &Table::new()).unwrap_err().to_string();
    assert!(missing.contains("--file") && missing.contains("--url"), "{missing}");
    assert!(table_of::<Source>("a --file x --url y", &Table::new()).is_err());

    #[derive(Debug, Args)]
    struct Apart {
        #[arg(long)]
        _deep: bool,
        #[arg(long, conflicts_with = "_deep")]
        _layers: Option<u8>,
    }
    let saved = table_of::<Apart>("a --layers 3", &Table::new()).unwrap();
    assert_eq!(toml::to_string(&saved).unwrap(), "deep = false\nlayers = 3\n");
    assert_eq!(toml::to_string(&table_of::<Apart>("a --deep", &saved).unwrap()).unwrap(), "deep = true\n");
}

#[test]
fn a_saved_default_excludes_and_requires_nothing() {
    #[derive(Debug, Args)]
    struct Defaults {
        #[arg(long, default_value_t = 4, conflicts_with = "_file")]
        _layers: u8,
        #[arg(long)]
        _file: Option<String>,
        #[arg(long, default_value = "a", requires = "_key")]
        _method: String,
        #[arg(long)]
        _key: Option<String>,
    }
    let saved = table_of::<Defaults>("a --file x", &Table::new()).unwrap();
    assert_eq!(toml::to_string(&saved).unwrap(), "layers = 4\nfile = \"x\"\nmethod = \"a\"\n");
    assert_eq!(table_of::<Defaults>("a", &saved).unwrap(), saved);
    let other = table_of::<Defaults>("a --layers 5", &Table::new()).unwrap();
    assert_eq!(table_of::<Defaults>("a", &other).unwrap(), other);
    let both = table_of::<Defaults>("a --layers 5 --file x", &Table::new()).unwrap_err().to_string();
    assert!(both.contains("cannot be used with"), "{both}");
}

#[test]
fn a_switch_is_true_or_false() {
    for value in [Value::from("yes"), Value::from(1)] {
        let saved = Table::from_iter([("odd".to_owned(), value), ("count".to_owned(), 3.into())]);
        let message = table_of::<Flags>("a", &saved).unwrap_err().to_string();
        assert!(message.contains("true, false"), "{message}");
    }
}

#[test]
fn a_switch_of_a_run_is_turned_off_by_a_setting() {
    let (own, mut saved) = (OwnFlags::of::<Flags>(), Table::new());
    let take = |mut layer: Layer, saved: &mut Table| {
        own.take(&mut layer, saved).unwrap();
        assert!(layer.table.is_empty());
    };
    for set in ["flags.odd=true", "flags.count=3", "flags.word=[\"x\", \"y\"]"] {
        take(Layer::of_set(set).unwrap(), &mut saved);
    }
    let shown = |saved: &Table| toml::to_string(&table_of::<Flags>("a", saved).unwrap()).unwrap();
    assert_eq!(shown(&saved), "count = 3\nword = [\"x\", \"y\"]\nodd = true\n");
    take(Layer::of_set("flags.odd=false").unwrap(), &mut saved);
    take(Layer::of_set("flags.word=[]").unwrap(), &mut saved);
    assert_eq!(shown(&saved), "count = 3\nodd = false\n");
}

#[test]
fn a_configuration_has_their_section_before_the_settings() {
    let own = OwnFlags::of::<Flags>();
    let command = own.add_to(Command::new("a"));
    let matches = command.try_get_matches_from(["a", "--count", "3"]).unwrap();
    let settings = crate::settings::config_to_toml(&crate::settings::Settings::default()).unwrap();
    let mut table: Table = (own.section(&matches).unwrap() + &settings).parse().unwrap();
    let flags = table.remove(SECTION).unwrap();
    assert_eq!(toml::to_string(&flags).unwrap(), "count = 3\nodd = false\n");
    assert_eq!(table, settings.parse().unwrap());
    let none = OwnFlags::of::<()>();
    assert_eq!(none.section(&Command::new("a").get_matches_from(["a"])).unwrap(), "");
}

#[test]
fn names_of_standard_flags_are_refused() {
    #[derive(Debug, Args)]
    struct Long {
        #[arg(long = "seed")]
        _start: u8,
    }
    #[derive(Debug, Args)]
    struct Short {
        #[arg(short = 'q')]
        _question: u8,
    }
    #[derive(Debug, Args)]
    struct Field {
        #[arg(long = "beginning", id = "seed")]
        _seed: u8,
    }
    for (own, said) in [
        (OwnFlags::of::<Long>(), "--seed"),
        (OwnFlags::of::<Short>(), "--quiet"),
        (OwnFlags::of::<Field>(), "--seed"),
    ] {
        let message = own.check(&standard()).unwrap_err().to_string();
        assert!(message.contains(&format!("the name of the standard flag {said}; ")), "{message}");
    }
}
