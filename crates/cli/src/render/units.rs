//! Numbers as people read them. Programs get the raw values through `--json`.

use std::time::Duration;

/// `253.11 MB`: decimal units, as file managers and model hubs count them.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    // 999.995 would print as 1000.00 with the smaller unit.
    while value >= 999.995 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// `36,864`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `268.1 M`: for numbers of parameters.
pub(crate) fn parameters(number: u64) -> String {
    match number {
        0..1_000_000 => count(number),
        1_000_000..1_000_000_000 => format!("{:.1} M", number as f64 / 1e6),
        _ => format!("{:.2} B", number as f64 / 1e9),
    }
}

/// `18 ms`, `4.2 s`, `3 min 20 s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 0.001 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

/// `12.5 %` of a share between 0 and 1.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A token as it may stand in a table: control characters shown, blanks at the ends kept visible.
pub(crate) fn token(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    // A mark that combines with what stands before it needs something to stand on.
    if text.chars().next().is_some_and(is_combining) {
        shown.push('◌');
    }
    let blank_ends = text.starts_with(' ') || text.ends_with(' ') || text.is_empty();
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            // Zero-width, directional, odd blank and control characters would disturb the columns.
            c if c != ' ' && (c.is_control() || c.is_whitespace() || is_invisible(c)) => {
                shown.extend(c.escape_unicode());
            }
            c => shown.push(c),
        }
    }
    if blank_ends { shown.replace(' ', "␣") } else { shown }
}

/// Marks that are drawn over the letter before them, of the blocks made for them.
fn is_combining(c: char) -> bool {
    matches!(c,
        '\u{0300}'..='\u{036f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Format characters that take no room or change the direction of what follows.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_scaled() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.00 kB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(253_113_024), "253.11 MB");
        assert_eq!(bytes(u64::MAX), "18446.74 PB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(36_864), "36,864");
        assert_eq!(count(1_234_567_890), "1,234,567,890");
        assert_eq!(parameters(268_098_176), "268.1 M");
        assert_eq!(duration(Duration::from_micros(40)), "40 µs");
        assert_eq!(duration(Duration::from_millis(18)), "18 ms");
        assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(percent(0.125), "12.5 %");
    }

    #[test]
    fn tokens_cannot_disturb_a_table() {
        assert_eq!(token(" France"), "␣France");
        assert_eq!(token("a b"), "a b");
        assert_eq!(token("\n\t"), "\\n\\t");
        assert_eq!(token("\u{345}"), "◌\u{345}");
        assert_eq!(token("e\u{301}"), "e\u{301}");
        assert_eq!(token("\u{200c}x"), "\\u{200c}x");
        assert_eq!(token("a\u{3000}b"), "a\\u{3000}b");
        assert_eq!(token("\x1b[31m"), "\\u{1b}[31m");
        assert_eq!(token(""), "");
    }
}
