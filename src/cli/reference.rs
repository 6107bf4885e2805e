//! `docs/cli.md`, written from the command tree itself.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

/// Headings of flags that clap adds by itself.
const OWN_FLAGS: [&str; 2] = ["help", "version"];

/// The reference of all subcommands, as Markdown.
pub fn text() -> String {
    let mut root = super::command();
    root.build();
    let mut out = String::from(
        "# Command line\n\n\
         Made from the program itself (`POINTSMAN_BLESS=1 cargo test drift` rewrites it); `pointsman SUBCOMMAND --help` \
         says the same.\n\n\
         Exit codes: 0 done, 1 a setting or the run failed, 2 a flag is unknown or cannot be parsed.\n\n\
         | subcommand | what it does |\n|---|---|\n",
    );
    let shown = || root.get_subcommands().filter(|c| !c.is_hide_set());
    for command in shown() {
        let name = command.get_name();
        // Writing to a string cannot fail, here and below.
        writeln!(out, "| [`{name}`](#pointsman-{name}) | {} |", about(command)).ok();
    }
    for command in shown() {
        section(&mut out, command.get_name(), command);
    }
    out.push_str("\n## Flags of every subcommand\n");
    table(&mut out, flags(&root).filter(|arg| arg.is_global_set()));
    out
}

fn about(command: &Command) -> String {
    command.get_about().map(|text| cell(&text.to_string())).unwrap_or_default()
}

fn section(out: &mut String, name: &str, command: &Command) {
    writeln!(out, "\n## pointsman {name}\n").ok();
    let long = command.get_long_about().or(command.get_about());
    writeln!(out, "{}", long.map(ToString::to_string).unwrap_or_default()).ok();
    let mut headings: Vec<Option<&str>> = Vec::new();
    let own = || flags(command).filter(|arg| !arg.is_global_set());
    for arg in own() {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        writeln!(out, "\n**{}**", heading.unwrap_or("Options")).ok();
        table(out, own().filter(|arg| arg.get_help_heading() == heading));
    }
    if let Some(examples) = command.get_after_long_help() {
        writeln!(out, "\n```text\n{}\n```", examples.to_string().trim_end()).ok();
    }
    for below in command.get_subcommands() {
        section(out, &format!("{name} {}", below.get_name()), below);
    }
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set() && !OWN_FLAGS.contains(&arg.get_id().as_str()))
}

fn table<'a>(out: &mut String, args: impl Iterator<Item = &'a Arg>) {
    out.push_str("\n| flag | environment | default | |\n|---|---|---|---|\n");
    for arg in args {
        row(out, arg);
    }
}

/// Takes `[NAME, default: VALUE]`, `[NAME]` or `[default: VALUE]` off the end of a help text.
fn split_note(help: &str) -> (&str, Option<&str>, Option<&str>) {
    let Some((text, note)) = help.strip_suffix(']').and_then(|rest| rest.rsplit_once(" [")) else {
        return (help, None, None);
    };
    match note.split_once("default: ") {
        Some(("", default)) => (text, None, Some(default)),
        Some((name, default)) => (text, Some(name.trim_end_matches(", ")), Some(default)),
        None => (text, Some(note), None),
    }
}

fn row(out: &mut String, arg: &Arg) {
    let long = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let value = arg.get_value_names().filter(|_| takes_value).and_then(<[_]>::first);
    let value = value.map(|name| format!(" {name}")).unwrap_or_default();
    let help = arg.get_help().map(|text| cell(&text.to_string())).unwrap_or_default();
    let (help, noted_env, noted_default) = split_note(&help);
    let own_env = arg.get_env().map(|name| name.to_string_lossy().into_owned());
    let env = own_env.as_deref().or(noted_env).map(|name| format!("`{name}`")).unwrap_or_default();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    let default = match noted_default {
        Some(words) => words.to_owned(),
        None if takes_value && !defaults.is_empty() => format!("`{}`", defaults.join(" ")),
        None => String::new(),
    };
    let mut help = help.to_owned();
    let choices = arg.get_possible_values();
    if takes_value && !choices.is_empty() {
        let described: Vec<String> = choices
            .iter()
            .map(|v| match v.get_help() {
                Some(about) => format!("`{}` ({about})", v.get_name()),
                None => format!("`{}`", v.get_name()),
            })
            .collect();
        write!(help, ": {}", described.join(", ")).ok();
    }
    writeln!(out, "| `{}` | {env} | {default} | {help} |", cell(&format!("{long}{value}"))).ok();
}

/// Text that fits a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
        if std::env::var_os("POINTSMAN_BLESS").is_some() {
            std::fs::write(path, text()).expect("docs/cli.md can be written");
        }
        let copy = std::fs::read_to_string(path).expect("docs/cli.md is there");
        assert!(copy == text(), "docs/cli.md is stale: `POINTSMAN_BLESS=1 cargo test drift` rewrites it");
    }

    #[test]
    fn every_flag_has_help() {
        let mut root = crate::cli::command();
        root.build();
        let below = root.get_subcommands().flat_map(Command::get_subcommands);
        for command in root.get_subcommands().chain(below) {
            assert!(!about(command).is_empty(), "{}", command.get_name());
            for arg in flags(command) {
                assert!(arg.get_help().is_some(), "{} --{}", command.get_name(), arg.get_id());
            }
        }
    }
}
