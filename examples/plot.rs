//! Kept bytes over steps, a line a policy, as SVG.
//!
//! The picture is small enough to write by hand: two axes with round numbers, a line that rises where
//! a slot was registered, and the name of each policy where its line ends.

use std::fmt::{self, Write};
use std::path::Path;
use std::{fs, io};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
/// Left, right, top and bottom of the axes.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 730.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 470.0;
/// Pixels between the names of two lines.
const LINE_HEIGHT: f64 = 18.0;
/// The first line is this wide and the last one that, so that lines on top of each other show as edges.
const WIDEST: f64 = 5.0;
const NARROWEST: f64 = 2.0;
/// Colours that people who see no red or no green can tell apart (Okabe and Ito).
const COLORS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
];

/// A picture of lines.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    title: String,
    /// What the steps are, in the plural.
    steps: String,
    lines: Vec<(String, Vec<usize>)>,
}

impl Plot {
    /// An empty picture, over steps that are called so, in the plural.
    #[must_use]
    pub fn new(title: impl Into<String>, steps: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            steps: steps.into(),
            lines: Vec::new(),
        }
    }

    /// Adds the bytes that a policy kept after each step.
    pub fn line(&mut self, name: impl Into<String>, bytes: Vec<usize>) {
        self.lines.push((name.into(), bytes));
    }

    /// Writes the picture into a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.to_string())
    }

    fn scale(&self) -> Scale {
        let steps = self.lines.iter().map(|(_, bytes)| bytes.len()).max();
        let most = self.lines.iter().flat_map(|(_, bytes)| bytes).max();
        Scale {
            steps: steps.unwrap_or(0).max(1),
            unit: Unit::of(most.copied().unwrap_or(0)),
            most: most.copied().unwrap_or(0).max(1),
        }
    }
}

impl fmt::Display for Plot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = self.scale();
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="14">"#
        )?;
        writeln!(
            f,
            r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#
        )?;
        let title = escaped(&self.title);
        writeln!(
            f,
            r#"<text x="{LEFT}" y="30" font-size="18">{title}</text>"#
        )?;
        scale.draw_axes(f, &escaped(&self.steps))?;
        // Lines that end at one height are named below each other.
        let mut ends: Vec<_> = self.lines.iter().enumerate().collect();
        ends.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(bytes.last().copied()));
        let mut lowest = f64::MIN;
        let narrower = (WIDEST - NARROWEST) / real(ends.len().max(2) - 1);
        for (place, (index, (name, bytes))) in ends.into_iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            scale.draw_line(f, bytes, color, WIDEST - narrower * real(place))?;
            let last = bytes.last().copied().unwrap_or(0);
            let y = (scale.y(last) + 5.0).max(lowest + LINE_HEIGHT);
            lowest = y;
            let (x, name, kept) = (RIGHT + 10.0, escaped(name), scale.unit.text(last));
            writeln!(
                f,
                r#"<text x="{x}" y="{y:.1}" fill="{color}">{name} {kept}</text>"#
            )?;
        }
        writeln!(f, "</svg>")
    }
}

/// What the axes measure.
struct Scale {
    /// Steps of the longest line; what was kept after one stays until the next.
    steps: usize,
    unit: Unit,
    most: usize,
}

impl Scale {
    fn x(&self, step: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * real(step) / real(self.steps)
    }

    fn y(&self, bytes: usize) -> f64 {
        BOTTOM - (BOTTOM - TOP) * real(bytes) / real(self.most)
    }

    fn draw_axes(&self, f: &mut fmt::Formatter<'_>, steps: &str) -> fmt::Result {
        let unit = self.unit;
        for tick in ticks(unit.of_bytes(self.most)) {
            let y = BOTTOM - (BOTTOM - TOP) * tick * unit.bytes / real(self.most);
            writeln!(
                f,
                r##"<path d="M{LEFT} {y:.1}H{RIGHT}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{tick}</text>"##,
                LEFT - 8.0,
                y + 5.0,
            )?;
        }
        for tick in ticks(real(self.steps))
            .into_iter()
            .filter(|tick| tick.fract() == 0.0)
        {
            let x = LEFT + (RIGHT - LEFT) * tick / real(self.steps);
            writeln!(
                f,
                r#"<path d="M{x:.1} {BOTTOM}v6" stroke="black"/><text x="{x:.1}" y="{}" text-anchor="middle">{tick}</text>"#,
                BOTTOM + 22.0,
            )?;
        }
        writeln!(
            f,
            r#"<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="black"/>"#
        )?;
        let middle = f64::midpoint(LEFT, RIGHT);
        writeln!(
            f,
            r#"<text x="{middle}" y="{}" text-anchor="middle">{steps}</text>"#,
            BOTTOM + 48.0
        )?;
        writeln!(
            f,
            r#"<text transform="translate(24 {}) rotate(-90)" text-anchor="middle">mapped bytes kept a rank, {}</text>"#,
            f64::midpoint(TOP, BOTTOM),
            unit.name
        )
    }

    /// A line that stays level between steps.
    fn draw_line(
        &self,
        f: &mut fmt::Formatter<'_>,
        bytes: &[usize],
        color: &str,
        width: f64,
    ) -> fmt::Result {
        let mut path = String::new();
        let mut last = None;
        for (step, &kept) in bytes.iter().enumerate() {
            let (x, y) = (self.x(step), self.y(kept));
            match last {
                None => write!(path, "M{x:.1} {y:.1}")?,
                Some(before) if before != kept => write!(path, "H{x:.1}V{y:.1}")?,
                Some(_) => {}
            }
            last = Some(kept);
        }
        if last.is_some() {
            write!(path, "H{:.1}", self.x(bytes.len()))?;
        }
        writeln!(
            f,
            r#"<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:.1}"/>"#
        )
    }
}

/// What bytes are counted in.
#[derive(Clone, Copy, Debug)]
struct Unit {
    name: &'static str,
    bytes: f64,
}

impl Unit {
    /// The largest unit of which there are two or more.
    fn of(bytes: usize) -> Self {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let fits = |&(_, power): &(&str, u32)| bytes >> power >= 2;
        let (name, power) = units.into_iter().find(fits).unwrap_or(("bytes", 0));
        Self {
            name,
            bytes: 2_f64.powi(i32::try_from(power).unwrap_or(0)),
        }
    }

    fn of_bytes(self, bytes: usize) -> f64 {
        real(bytes) / self.bytes
    }

    /// With as many digits as it takes, at most two behind the point.
    fn text(self, bytes: usize) -> String {
        let hundredths = (self.of_bytes(bytes) * 100.0).round() / 100.0;
        format!("{hundredths} {}", self.name)
    }
}

/// Round numbers from zero on, at most ten, the last of them no more than `most`.
fn ticks(most: f64) -> Vec<f64> {
    let rough = most / 8.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|round| round * power);
    let step = step.into_iter().find(|&step| step >= rough).unwrap_or(most);
    let mut all = Vec::new();
    let mut tick = 0.0;
    while tick <= most * 1.000_001 && all.len() < 12 {
        all.push((tick * 1e6).round() / 1e6);
        tick += step;
    }
    all
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
fn real(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let mut plot = Plot::new("a & b", "calls");
        plot.line("<one>", vec![2 << 20, 2 << 20, 16 << 20]);
        plot.line("other", vec![16 << 20; 3]);
        plot
    }

    #[test]
    fn every_policy_has_a_line_and_a_name_of_its_own() {
        let text = plot().to_string();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert!(
            text.contains("a &amp; b") && text.contains("&lt;one> 16 MiB<"),
            "{text}"
        );
        // Down to two sixteenths, then up; the other stays level.
        assert!(text.contains("M90.0 418.8H516.7V60.0H730.0"), "{text}");
        assert!(text.contains("M90.0 60.0H730.0"), "{text}");
        let names: Vec<_> = text
            .lines()
            .filter(|line| line.contains(r#"x="740""#))
            .collect();
        assert_eq!(names.len(), 2);
        assert!(
            names[0].contains(r#"y="65.0""#) && names[1].contains(r#"y="83.0""#),
            "{names:?}"
        );
        assert!(text.contains("a rank, MiB") && text.contains(">calls<"));
        assert!(text.contains(r#"width="5.0""#) && text.contains(r#"width="2.0""#));
    }

    #[test]
    fn numbers_have_the_digits_they_need() {
        let unit = Unit::of(5 << 20);
        let texts = [5 << 20, 640 << 10, (1 << 20) + 4096].map(|bytes| unit.text(bytes));
        assert_eq!(texts, ["5 MiB", "0.63 MiB", "1 MiB"]);
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(60.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(36.0).last(), Some(&35.0));
        assert!(ticks(12_345.0).len() <= 10);
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let text = Plot::new("", "").to_string();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
