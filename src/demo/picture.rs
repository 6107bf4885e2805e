//! How the comparison looks: both sides beside each other, live and at the end. Pure: counts in, lines out.

use std::time::Duration;

use console::style;

use super::{
    drill::Drill,
    fleet::Fleet,
    tally::{EngineTally, Snapshot},
};

/// Widths of the columns; a line stays below 100.
const NAME: usize = 20;
const SIDE: usize = 38;
const BAR: usize = 10;
const PROGRESS: usize = 30;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since its start.
    pub elapsed: Duration,
    /// Requests that both sides together have finished, of all of them.
    pub ended: u64,
    /// All of them.
    pub planned: u64,
    /// Which round of an endless run; counted from 1.
    pub round: Option<u64>,
}

/// Both sides.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    /// By the selectors' choice.
    pub selector: &'a Snapshot,
    /// In turn.
    pub round_robin: &'a Snapshot,
}

impl Sides<'_> {
    fn both(&self) -> [&Snapshot; 2] {
        [self.selector, self.round_robin]
    }
}

/// A selector as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct SelectorView {
    /// Calls it answered.
    pub answered: u64,
    /// Its live bookings; `None` while it is gone.
    pub bookings: Option<u64>,
}

/// The selectors together.
#[derive(Clone, Debug, Default)]
pub struct Selectorship {
    /// By number.
    pub selectors: Vec<SelectorView>,
    /// Calls that another selector answered because the first one was gone.
    pub moved: u64,
    /// Calls about a booking that the selector did not know.
    pub unknown: u64,
    /// How the last one that was killed came back.
    pub drill: Option<Drill>,
    /// Why one did not.
    pub failure: Option<String>,
    /// After the last request: so many blocks that all know, and no booking; or how they differ.
    pub agreed: Option<Result<u64, String>>,
}

/// The live picture.
pub fn live(progress: Progress, sides: Sides<'_>, selectors: &Selectorship) -> Vec<String> {
    let mut lines = vec![progress_line(progress), String::new()];
    lines.extend(table(sides));
    lines.push(String::new());
    lines.extend(selector_rows(selectors));
    if let Some(drill) = selectors.drill {
        lines.extend(came_back(&drill).map(|text| format!("  {text}")));
    }
    lines
}

/// One line for where nothing can be redrawn.
pub fn plain(progress: Progress, sides: Sides<'_>, selectors: &Selectorship) -> String {
    let side = |side: &Snapshot| {
        let (share, first) = (side.total().cached_share() * 100.0, time(side.first_token_at(50.0)));
        format!("cached {share:3.0} %, first token p50 {first:>8}")
    };
    let bookings = selectors.selectors.iter().map(|one| one.bookings.map_or("gone".into(), |live| live.to_string()));
    let bookings: Vec<String> = bookings.collect();
    format!(
        "{:5.1} s  {:4}/{} requests   pointsman: {}   round robin: {}   bookings: {}",
        progress.elapsed.as_secs_f64(),
        progress.ended,
        progress.planned,
        side(sides.selector),
        side(sides.round_robin),
        bookings.join(" "),
    )
}

/// The end of a run: the table and what it means.
pub fn summary(sides: Sides<'_>, selectors: &Selectorship) -> Vec<String> {
    let mut lines = table(sides);
    lines.push(String::new());
    lines.extend(selector_rows(selectors));
    lines.push(String::new());
    let conclusions = conclusions(sides).into_iter().chain(selector_conclusions(selectors));
    lines.extend(conclusions.map(|text| format!("  {text}")));
    lines
}

fn selector_rows(selectors: &Selectorship) -> Vec<String> {
    let row = |(number, one): (usize, &SelectorView)| {
        let bookings =
            one.bookings.map_or_else(|| style("gone").bold().red().to_string(), |live| format!("{live} bookings live"));
        format!("  {:NAME$}{:>8} calls answered   {bookings}", format!("selector-{number}"), one.answered)
    };
    selectors.selectors.iter().enumerate().map(row).collect()
}

/// What a selector that was killed knew when it was back.
fn came_back(drill: &Drill) -> [String; 2] {
    let first = drill.first;
    let rest = match drill.equal {
        Some(at) if at.is_zero() => "all there is".to_owned(),
        Some(at) => format!("the rest {} later", time(at)),
        None => "and never the rest".to_owned(),
    };
    [
        format!(
            "Selector {} was killed with {} bookings live and started again after {}; it was ready in {}.",
            drill.selector,
            drill.bookings,
            time(drill.away),
            time(drill.ready),
        ),
        format!(
            "Then it knew {} of its peers' {} blocks and {} of {} bookings: {rest}.",
            thousands(first.blocks.saturating_sub(first.blocks_missing)),
            thousands(first.blocks),
            first.bookings.saturating_sub(first.bookings_missing),
            first.bookings,
        ),
    ]
}

fn selector_conclusions(selectors: &Selectorship) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(selectors.drill.iter().flat_map(came_back));
    lines.extend(selectors.failure.as_ref().map(|why| format!("A selector did not come back: {why}.")));
    if selectors.moved > 0 {
        lines.push(format!("{} calls met a selector that was gone; the next one answered them.", selectors.moved));
    }
    if selectors.unknown > 0 {
        lines.push(format!("{} calls were about a booking that the selector did not know.", selectors.unknown));
    }
    match &selectors.agreed {
        Some(Ok(blocks)) if selectors.selectors.len() > 1 => lines.push(format!(
            "In the end all {} selectors know the same {} blocks, and no booking is left.",
            selectors.selectors.len(),
            thousands(*blocks)
        )),
        Some(Ok(_)) | None => {}
        Some(Err(why)) => lines.push(format!("In the end: {why}.")),
    }
    lines
}

fn progress_line(progress: Progress) -> String {
    let share = if progress.planned == 0 { 0.0 } else { progress.ended as f64 / progress.planned as f64 };
    let round = progress.round.map(|round| format!("round {round}   ")).unwrap_or_default();
    format!(
        "  {:5.1} s   {round}{}   {} of {} requests",
        progress.elapsed.as_secs_f64(),
        style(bar(share, PROGRESS)).cyan(),
        progress.ended,
        progress.planned
    )
}

fn table(sides: Sides<'_>) -> Vec<String> {
    let mut lines = vec![
        format!(
            "  {:NAME$}{}{}",
            "",
            style(format!("{:SIDE$}", "pointsman (work-ahead)")).bold().green(),
            style("round robin").bold().yellow()
        ),
        style(format!("  {:NAME$}{:SIDE$}{:SIDE$}", "", HEAD, HEAD)).dim().to_string(),
    ];
    for number in 0..sides.selector.engines.len() {
        let [selector, round_robin] = sides.both().map(|side| side.engines.get(number).copied().unwrap_or_default());
        lines.push(format!("  {:NAME$}{}{}", Fleet::label(number), engine(selector, true), engine(round_robin, false)));
    }
    let [selector, round_robin] = sides.both().map(Snapshot::total);
    lines.push(format!("  {:NAME$}{}{}", "all engines", engine(selector, true), engine(round_robin, false)));
    lines.push(String::new());
    let row = |name: &str, value: fn(&Snapshot) -> String| {
        let [selector, round_robin] = sides.both().map(value);
        format!("  {name:NAME$}{selector:SIDE$}{round_robin}")
    };
    lines.push(row("time to first token", |side| {
        let at = |percent| time(side.first_token_at(percent));
        format!("p50 {:>8}   p95 {:>8}", at(50.0), at(95.0))
    }));
    lines.push(row("prompt tokens", |side| {
        let total = side.total();
        format!("{} computed of {}", thousands(total.computed_tokens()), thousands(total.prompt_tokens))
    }));
    lines
}

const HEAD: &str = "requests  running  cached";

fn engine(tally: EngineTally, ours: bool) -> String {
    let bar = bar(tally.cached_share(), BAR);
    let bar = if ours { style(bar).green() } else { style(bar).yellow() };
    let share = tally.cached_share() * 100.0;
    // The bar's own width counts, not that of its colour.
    let rest = SIDE - (8 + 1 + 8 + 1 + 7 + 1 + BAR);
    format!("{:>8} {:>8} {share:>5.0} % {bar}{:rest$}", tally.finished, tally.in_flight, "")
}

/// What the numbers say, in words; only what they do say.
fn conclusions(sides: Sides<'_>) -> Vec<String> {
    let Sides { selector, round_robin } = sides;
    let (ours, theirs) = (selector.total(), round_robin.total());
    if ours.finished == 0 || theirs.finished == 0 {
        return vec!["Too few requests finished to compare.".into()];
    }
    let mut lines = vec![format!(
        "Cached share of the prompts: {:.0} % by the selectors' choice, {:.0} % in turn.",
        ours.cached_share() * 100.0,
        theirs.cached_share() * 100.0
    )];
    let per_request = |tally: EngineTally| tally.computed_tokens() as f64 / tally.finished as f64;
    let (fewer, sooner) = (
        per_request(theirs) / per_request(ours).max(1.0),
        round_robin.first_token_at(50.0).as_secs_f64() / selector.first_token_at(50.0).as_secs_f64().max(1e-6),
    );
    lines.push(format!(
        "Prompt tokens computed for a request: {:.0} instead of {:.0} ({fewer:.1} times {}).",
        per_request(ours),
        per_request(theirs),
        if fewer >= 1.0 { "fewer" } else { "as many" }
    ));
    lines.push(format!(
        "First token at the median: after {} instead of {} ({sooner:.1} times {}).",
        time(selector.first_token_at(50.0)),
        time(round_robin.first_token_at(50.0)),
        if sooner >= 1.0 { "sooner" } else { "the time" }
    ));
    let choice = Duration::from_micros(selector.choice.value_at_percentile(50.0));
    lines.push(format!("The choice itself took {} at the median, HTTP included.", time(choice)));
    if selector.expected > 0 {
        lines.push(format!(
            "The selectors knew the cached tokens exactly for {:.0} % of the requests, from KV events alone.",
            100.0 * selector.expected_exactly as f64 / selector.expected as f64
        ));
    }
    lines
}

/// A bar of `width` cells, `share` of them full, in eighths.
fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let (full, part) = (eighths / 8, eighths % 8);
    let mut text = "█".repeat(full);
    if full < width {
        text.push(EIGHTHS[part]);
        text.push_str(&" ".repeat(width - full - 1));
    }
    text
}

/// A time in the unit that suits it.
fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 10.0 => format!("{seconds:.0} s"),
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.01 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{:.1} ms", seconds * 1e3),
    }
}

/// A number with its thousands apart.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::{
        knowledge::Look,
        tally::{Finished, Tally},
    };

    /// A side whose requests had so many of 1,000 prompt tokens cached and so long a wait.
    fn side(cached_tokens: u64, first_token: Duration) -> Snapshot {
        let tally = Tally::new(2);
        for engine in [0, 1, 1] {
            tally.started(engine);
            let choice = Duration::from_micros(400);
            let expected_tokens = Some(800);
            tally.finished(Finished {
                engine,
                prompt_tokens: 1000,
                cached_tokens,
                expected_tokens,
                first_token,
                choice,
            });
        }
        tally.snapshot()
    }

    fn text(lines: &[String]) -> String {
        console::strip_ansi_codes(&lines.join("\n")).into_owned()
    }

    #[test]
    fn both_sides_stand_beside_each_other_within_100_columns() {
        let (ours, theirs) = (side(800, Duration::from_millis(25)), side(400, Duration::from_millis(250)));
        let sides = Sides { selector: &ours, round_robin: &theirs };
        let progress = Progress { elapsed: Duration::from_millis(12_340), ended: 6, planned: 12, round: Some(2) };
        let view = |bookings| SelectorView { answered: 40, bookings };
        let selectors = Selectorship { selectors: vec![view(Some(7)), view(None)], ..Selectorship::default() };
        let picture = text(&live(progress, sides, &selectors));
        for line in picture.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        for part in ["12.3 s", "round 2", "6 of 12 requests", "engine-0 vLLM", "engine-1 SGLang", "80 %", "40 %"] {
            assert!(picture.contains(part), "no {part:?} in\n{picture}");
        }
        assert!(picture.contains("7 bookings live") && picture.contains("gone"), "{picture}");
        assert!(picture.contains("600 computed of 3 000") && picture.contains("1 800 computed of 3 000"), "{picture}");
        let line = plain(progress, sides, &selectors);
        assert!(line.contains("pointsman: cached  80 %") && line.contains("round robin: cached  40 %"), "{line}");
    }

    #[test]
    fn the_summary_says_what_the_numbers_say_and_no_more() {
        let (ours, theirs) = (side(800, Duration::from_millis(25)), side(400, Duration::from_millis(250)));
        let good = text(&summary(Sides { selector: &ours, round_robin: &theirs }, &Selectorship::default()));
        for part in [
            "80 % by the selectors' choice, 40 % in turn",
            "200 instead of 600 (3.0 times fewer)",
            "times sooner",
            "for 100 % of the requests",
        ] {
            assert!(good.contains(part), "no {part:?} in\n{good}");
        }
        let bad = text(&summary(Sides { selector: &theirs, round_robin: &ours }, &Selectorship::default()));
        assert!(bad.contains("(0.3 times as many)") && bad.contains("(0.1 times the time)"), "{bad}");
        let nothing = Tally::new(2).snapshot();
        let empty = text(&summary(Sides { selector: &nothing, round_robin: &ours }, &Selectorship::default()));
        assert!(empty.contains("Too few requests"), "{empty}");
    }

    #[test]
    fn the_summary_says_what_a_killed_selector_knew_when_it_was_back() {
        let first = Look { bookings: 6, bookings_missing: 1, blocks: 1500, blocks_missing: 2, ..Look::default() };
        let span = Duration::from_millis;
        let drill =
            Drill { selector: 1, bookings: 9, away: span(2000), ready: span(700), first, equal: Some(span(30)) };
        let agreed = Some(Ok(1600));
        let selectors = Selectorship { drill: Some(drill), moved: 3, agreed, ..Selectorship::default() };
        let ours = side(800, Duration::from_millis(25));
        let text = text(&summary(Sides { selector: &ours, round_robin: &ours }, &selectors));
        for part in [
            "Selector 1 was killed with 9 bookings live",
            "knew 1 498 of its peers' 1 500 blocks and 5 of 6 bookings: the rest 30 ms later",
            "3 calls met a selector that was gone",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let drill = Drill { equal: Some(Duration::ZERO), ..drill };
        assert!(came_back(&drill)[1].ends_with("5 of 6 bookings: all there is."));
        assert!(came_back(&Drill { equal: None, ..drill })[1].contains("never the rest"));
    }

    #[test]
    fn bars_times_and_numbers_are_readable() {
        assert_eq!((bar(0.0, 3), bar(1.0, 3), bar(0.5, 3)), ("   ".into(), "███".into(), "█▌ ".into()));
        assert_eq!(bar(7.0, 2), "██");
        let times = [3_400u64, 24_000, 1_250_000, 75_000_000].map(|micros| time(Duration::from_micros(micros)));
        assert_eq!(times, ["3.4 ms", "24 ms", "1.2 s", "75 s"]);
        assert_eq!([7, 1_000, 1_234_567].map(thousands), ["7", "1 000", "1 234 567"]);
    }
}
