//! Kept bytes or other numbers over steps, a line each, as SVG.
//!
//! The picture is small enough to write by hand: two axes with round numbers, a line that rises where
//! a slot was registered or goes from number to number, and the name of each where its line ends.

use std::fmt;
use std::path::Path;
use std::{fs, io};

use crate::exit::about;

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
    /// What the numbers are, where they are not bytes.
    quantity: Option<String>,
    lines: Vec<(String, Vec<f64>)>,
}

impl Plot {
    /// An empty picture of kept bytes, over steps that are called so, in the plural.
    #[must_use]
    pub fn new(title: impl Into<String>, steps: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            steps: steps.into(),
            quantity: None,
            lines: Vec::new(),
        }
    }

    /// Numbers that are not bytes but this.
    #[must_use]
    pub fn of(mut self, quantity: impl Into<String>) -> Self {
        self.quantity = Some(quantity.into());
        self
    }

    /// Adds the bytes that a policy kept after each step.
    pub fn line(&mut self, name: impl Into<String>, bytes: Vec<usize>) {
        self.curve(name, bytes.into_iter().map(real).collect());
    }

    /// Adds a number for each step, none of them below zero.
    pub fn curve(&mut self, name: impl Into<String>, numbers: Vec<f64>) {
        self.lines.push((name.into(), numbers));
    }

    /// Writes the picture into a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.to_string()).map_err(|error| about(path, error))
    }

    fn scale(&self) -> Scale {
        let steps = self.lines.iter().map(|(_, numbers)| numbers.len()).max();
        let numbers = self.lines.iter().flat_map(|(_, numbers)| numbers);
        let finite = numbers.copied().filter(|number| number.is_finite());
        let most = finite.fold(0.0, f64::max);
        Scale {
            steps: steps.unwrap_or(0).max(1),
            unit: match &self.quantity {
                None => Unit::of_bytes_up_to(most),
                Some(_) => Unit::PLAIN,
            },
            most: if most > 0.0 { most } else { 1.0 },
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
        let bytes = format!("mapped bytes kept a rank, {}", scale.unit.name);
        let quantity = self.quantity.as_ref().unwrap_or(&bytes);
        scale.draw_axes(f, &escaped(&self.steps), &escaped(quantity))?;
        // Lines that end at one height are named below each other, and none below the axis, where the
        // last step is named.
        let mut ends: Vec<_> = self.lines.iter().enumerate().collect();
        let end = |numbers: &[f64]| numbers.last().copied().unwrap_or(0.0);
        ends.sort_by(|(_, (_, one)), (_, (_, other))| end(other).total_cmp(&end(one)));
        let below = |place: usize| LINE_HEIGHT * real(ends.len() - 1 - place);
        let room: Vec<_> = (0..ends.len())
            .map(|place| BOTTOM + 4.0 - below(place))
            .collect();
        let mut lowest = f64::MIN;
        let narrower = (WIDEST - NARROWEST) / real(ends.len().max(2) - 1);
        for (place, (index, (name, numbers))) in ends.into_iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let width = WIDEST - narrower * real(place);
            let path = match self.quantity {
                None => scale.stairs(numbers),
                Some(_) => scale.curve(numbers),
            };
            writeln!(
                f,
                r#"<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:.1}"/>"#
            )?;
            let last = end(numbers);
            let y = (scale.y(last) + 5.0)
                .max(lowest + LINE_HEIGHT)
                .min(room[place]);
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
    most: f64,
}

impl Scale {
    fn x(&self, step: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * real(step) / real(self.steps)
    }

    /// What is no number goes to the upper edge.
    fn y(&self, number: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * number.min(self.most) / self.most
    }

    fn draw_axes(&self, f: &mut fmt::Formatter<'_>, steps: &str, quantity: &str) -> fmt::Result {
        for tick in ticks(self.most / self.unit.size) {
            let y = self.y(tick * self.unit.size);
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
            r#"<text transform="translate(24 {}) rotate(-90)" text-anchor="middle">{quantity}</text>"#,
            f64::midpoint(TOP, BOTTOM),
        )
    }

    /// A line that stays level between steps.
    fn stairs(&self, numbers: &[f64]) -> String {
        let mut path = String::new();
        let mut last = None;
        for (step, &kept) in numbers.iter().enumerate() {
            let (x, y) = (self.x(step), self.y(kept));
            match last {
                None => path.push_str(&format!("M{x:.1} {y:.1}")),
                Some(before) if before != kept => path.push_str(&format!("H{x:.1}V{y:.1}")),
                Some(_) => {}
            }
            last = Some(kept);
        }
        if last.is_some() {
            path.push_str(&format!("H{:.1}", self.x(numbers.len())));
        }
        path
    }

    /// A line from number to number.
    fn curve(&self, numbers: &[f64]) -> String {
        let point = |(step, &number): (usize, &f64)| {
            let letter = if step == 0 { 'M' } else { 'L' };
            format!("{letter}{:.1} {:.1}", self.x(step), self.y(number))
        };
        numbers.iter().enumerate().map(point).collect()
    }
}

/// What is counted in.
#[derive(Clone, Copy, Debug)]
struct Unit {
    name: &'static str,
    size: f64,
    /// Digits behind the point, at most.
    digits: i32,
}

impl Unit {
    /// Numbers as they are.
    const PLAIN: Self = Self {
        name: "",
        size: 1.0,
        digits: 4,
    };

    /// The largest unit of which there are two or more.
    fn of_bytes_up_to(most: f64) -> Self {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let fits = |&(_, power): &(&str, i32)| most / 2_f64.powi(power) >= 2.0;
        let (name, power) = units.into_iter().find(fits).unwrap_or(("bytes", 0));
        Self {
            name,
            size: 2_f64.powi(power),
            digits: 2,
        }
    }

    /// With as many digits as it takes, up to a few.
    fn text(self, number: f64) -> String {
        let scale = 10_f64.powi(self.digits);
        let rounded = (number / self.size * scale).round() / scale;
        format!("{rounded} {}", self.name).trim_end().to_owned()
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
        let unit = Unit::of_bytes_up_to(real(5 << 20));
        let texts = [5 << 20, 640 << 10, (1 << 20) + 4096].map(|bytes| unit.text(real(bytes)));
        assert_eq!(texts, ["5 MiB", "0.63 MiB", "1 MiB"]);
        assert_eq!(Unit::PLAIN.text(0.001_234), "0.0012");
    }

    #[test]
    fn numbers_that_are_no_bytes_make_a_curve_with_their_name_on_the_axis() {
        let mut plot = Plot::new("a run", "steps").of("mean loss");
        plot.curve("ranks", vec![0.8, 0.4, 0.2, 0.2]);
        plot.curve("one rank", vec![0.8, f64::NAN, 0.2, 0.0]);
        let text = plot.to_string();
        assert!(
            text.contains(">mean loss<") && !text.contains("bytes"),
            "{text}"
        );
        assert!(
            text.contains("M90.0 60.0L250.0 265.0L410.0 367.5L570.0 367.5"),
            "{text}"
        );
        assert!(
            text.contains(">ranks 0.2<") && !text.contains("NaN"),
            "{text}"
        );
        // From zero to eight tenths in round steps.
        assert!(text.contains(">0.1<") && text.contains(">0.8<"), "{text}");
    }

    #[test]
    fn no_name_is_below_the_axis_or_on_another() {
        let mut plot = Plot::new("a run", "steps").of("mean loss");
        for name in ["one", "two", "three"] {
            plot.curve(name, vec![0.8, 0.001]);
        }
        let text = plot.to_string();
        let place = |line: &str| {
            let (_, rest) = line.split_once(r#"x="740" y=""#)?;
            rest.split_once('"')?.0.parse::<f64>().ok()
        };
        let places: Vec<_> = text.lines().filter_map(place).collect();
        assert_eq!(places, [438.0, 456.0, 474.0]);
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
