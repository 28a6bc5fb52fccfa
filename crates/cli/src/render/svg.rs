//! Drawings: a grid with layers down and tokens across, as SVG. Made for paper: dark text on pale
//! cells, one hue, every text escaped, no scripts, no fonts to load.

use std::fmt::Write;

/// Columns that a drawing has room for.
pub(crate) const MOST_COLUMNS: usize = 24;
const CELL_WIDTH: f64 = 92.0;
const CELL_HEIGHT: f64 = 34.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 96.0;
const MARGIN: f64 = 20.0;
const BARS_WIDTH: f64 = 200.0;
const BARS_GAP: f64 = 36.0;
/// Letters that fit a cell, at the size of its text.
const CELL_LETTERS: usize = 12;
/// The first and the second series of bars; they differ in lightness too.
const SERIES: [&str; 2] = ["#e08a2e", "#1f5fa8"];

/// A cell of the grid.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    /// The large text.
    pub(crate) text: String,
    /// The small text below.
    pub(crate) detail: String,
    /// How strongly it is coloured, 0 to 1.
    pub(crate) shade: f64,
    /// Whether a frame sets it apart.
    pub(crate) framed: bool,
}

/// Horizontal bars to the right of the grid, two for each row.
#[derive(Debug, Clone)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) names: [&'static str; 2],
    pub(crate) values: Vec<[f64; 2]>,
}

/// A drawing.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<String>,
    /// By row, then by column.
    pub(crate) cells: Vec<Vec<Cell>>,
    pub(crate) bars: Option<Bars>,
}

/// The subtitle, and that columns were left out where they were.
pub(crate) fn note_of_columns(left_out: usize, subtitle: &str) -> String {
    match left_out {
        0 => subtitle.to_owned(),
        n => format!("{subtitle}; the first {n} positions are left out"),
    }
}

impl Grid {
    /// The drawing as an SVG document.
    pub(crate) fn render(&self) -> String {
        let grid = self.columns.len() as f64 * CELL_WIDTH;
        let bars = self.bars.as_ref().map_or(0.0, |_| BARS_GAP + BARS_WIDTH);
        // Titles are wider than the grid of a short text.
        let titles = self.subtitle.chars().count().max(self.title.chars().count()) as f64 * 6.4;
        let width = LEFT + (grid + bars).max(titles) + MARGIN;
        let height = TOP + self.rows.len() as f64 * CELL_HEIGHT + MARGIN;
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"Helvetica, Arial, Noto Sans, sans-serif\" \
             fill=\"#1a1a1a\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        text(&mut out, MARGIN, 28.0, "font-size=\"17\" font-weight=\"bold\"", &self.title);
        text(&mut out, MARGIN, 48.0, "font-size=\"12\" fill=\"#555555\"", &self.subtitle);
        for (column, name) in self.columns.iter().enumerate() {
            let x = LEFT + (column as f64 + 0.5) * CELL_WIDTH;
            let style = "font-size=\"13\" font-weight=\"bold\" text-anchor=\"middle\"";
            text(&mut out, x, TOP - 10.0, style, &shorten(name));
        }
        for (row, name) in self.rows.iter().enumerate() {
            let y = TOP + row as f64 * CELL_HEIGHT;
            let style = "font-size=\"12\" fill=\"#555555\" text-anchor=\"end\"";
            text(&mut out, LEFT - 8.0, y + CELL_HEIGHT / 2.0 + 4.0, style, name);
            for (column, cell) in self.cells.get(row).into_iter().flatten().enumerate() {
                cell.draw(&mut out, LEFT + column as f64 * CELL_WIDTH, y);
            }
        }
        if let Some(bars) = &self.bars {
            bars.draw(&mut out, LEFT + grid + BARS_GAP);
        }
        out.push_str("</svg>\n");
        out
    }
}

impl Cell {
    fn draw(&self, out: &mut String, x: f64, y: f64) {
        let shade = if self.shade.is_finite() { self.shade.clamp(0.0, 1.0) } else { 0.0 };
        // From white to a blue on which dark text can still be read.
        let mix = |from: f64, to: f64| (from + (to - from) * shade.sqrt()).round();
        let (red, green, blue) = (mix(255.0, 122.0), mix(255.0, 176.0), mix(255.0, 222.0));
        let (stroke, stroke_width) = if self.framed { ("#1a1a1a", 1.6) } else { ("#dddddd", 0.7) };
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" \
             fill=\"rgb({red:.0},{green:.0},{blue:.0})\" stroke=\"{stroke}\" \
             stroke-width=\"{stroke_width}\"/>",
            x + 1.5,
            y + 1.5,
            CELL_WIDTH - 3.0,
            CELL_HEIGHT - 3.0
        );
        let middle = x + CELL_WIDTH / 2.0;
        text(
            out,
            middle,
            y + 16.0,
            "font-size=\"12.5\" text-anchor=\"middle\"",
            &shorten(&self.text),
        );
        let style = "font-size=\"9.5\" fill=\"#444444\" text-anchor=\"middle\"";
        text(out, middle, y + 28.0, style, &self.detail);
    }
}

impl Bars {
    fn draw(&self, out: &mut String, x: f64) {
        let style = "font-size=\"13\" font-weight=\"bold\"";
        text(out, x, TOP - 30.0, style, &self.title);
        for (i, (name, colour)) in self.names.iter().zip(SERIES).enumerate() {
            let left = x + i as f64 * 90.0;
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
                TOP - 20.0
            );
            text(out, left + 15.0, TOP - 11.0, "font-size=\"11\"", name);
        }
        let size = |values: &[f64; 2]| values.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
        let largest = self.values.iter().map(size).fold(0.0_f64, f64::max);
        let highest = self.values.iter().flatten().fold(0.0_f64, |m, &v| m.max(v));
        let lowest = self.values.iter().flatten().fold(0.0_f64, |m, &v| m.min(v));
        // Numbers stand beyond the ends of their bars.
        let room = BARS_WIDTH - 76.0;
        let unit =
            if highest > lowest && largest.is_finite() { room / (highest - lowest) } else { 0.0 };
        let zero = x + 38.0 - lowest * unit;
        let bottom = TOP + self.values.len() as f64 * CELL_HEIGHT;
        let _ = writeln!(
            out,
            "<line x1=\"{zero:.1}\" y1=\"{TOP:.1}\" x2=\"{zero:.1}\" y2=\"{bottom:.1}\" \
             stroke=\"#999999\" stroke-width=\"0.7\"/>"
        );
        for (row, values) in self.values.iter().enumerate() {
            for (i, (&value, colour)) in values.iter().zip(SERIES).enumerate() {
                let y = TOP + row as f64 * CELL_HEIGHT + 6.0 + i as f64 * 11.5;
                let (left, length) = (zero + value.min(0.0) * unit, value.abs() * unit);
                let _ = writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"9.5\" \
                     fill=\"{colour}\"/>"
                );
                let (at, anchor) = match value < 0.0 {
                    true => (left - 4.0, "end"),
                    false => (left + length + 4.0, "start"),
                };
                let style = format!("font-size=\"9.5\" fill=\"#444444\" text-anchor=\"{anchor}\"");
                // A number for every bar that can be seen.
                if value.abs() >= 0.05 {
                    text(out, at, y + 8.2, &style, &format!("{value:+.1}"));
                }
            }
        }
    }
}

fn text(out: &mut String, x: f64, y: f64, style: &str, content: &str) {
    let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>");
    escape(out, content);
    out.push_str("</text>\n");
}

/// Cut to the width of a cell; scripts with wide letters get fewer.
fn shorten(text: &str) -> String {
    let wide = |c: char| if u32::from(c) >= 0x1100 { 2 } else { 1 };
    if text.chars().map(wide).sum::<usize>() <= CELL_LETTERS {
        return text.to_owned();
    }
    let mut used = 1;
    let kept = text.chars().take_while(|&c| {
        used += wide(c);
        used <= CELL_LETTERS
    });
    kept.chain(['…']).collect()
}

/// Text as XML takes it; characters that XML 1.0 has no way to write become U+FFFD.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(word: &str) -> Grid {
        let cell =
            Cell { text: word.to_owned(), detail: word.to_owned(), shade: f64::NAN, framed: true };
        Grid {
            title: word.to_owned(),
            subtitle: word.to_owned(),
            columns: vec![word.to_owned()],
            rows: vec![word.to_owned()],
            cells: vec![vec![cell]],
            bars: Some(Bars {
                title: word.to_owned(),
                names: ["a", "b"],
                values: vec![[0.0, 0.0]],
            }),
        }
    }

    #[test]
    fn no_text_breaks_out_of_its_element() {
        let drawn = grid("</text><script>'\"&\0\x1b").render();
        assert!(!drawn.contains("<script") && !drawn.contains('\0') && !drawn.contains('\x1b'));
        assert_eq!(drawn.matches("<text").count(), drawn.matches("</text>").count());
        assert!(!drawn.contains("NaN"), "{drawn}");
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(shorten("twelve chars"), "twelve chars");
        assert_eq!(shorten("thirteen char"), "thirteen ch…");
        assert_eq!(shorten("日本語日本語日本語"), "日本語日本…");
    }
}
