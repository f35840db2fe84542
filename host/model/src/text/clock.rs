//! The date that templates may ask for, in UTC, taken once when the template is loaded: prompts of one run then agree.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// A second.
#[derive(Clone, Copy)]
pub(super) struct Moment(i64);

impl Moment {
    pub(super) fn now() -> Self {
        Self(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs() as i64),
        )
    }

    /// C's `strftime`, English names; a directive that is not known stays as it is.
    pub(super) fn format(self, format: &str) -> String {
        let (days, seconds) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let weekday = (days + 3).rem_euclid(7) as usize;
        let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[weekday]);
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('Y') => out.push_str(&year.to_string()),
                Some('y') => out.push_str(&format!("{:02}", year.rem_euclid(100))),
                Some('m') => out.push_str(&format!("{month:02}")),
                Some('d') => out.push_str(&format!("{day:02}")),
                Some('e') => out.push_str(&format!("{day:2}")),
                Some('B') => out.push_str(month_name),
                Some('b') => out.push_str(&month_name[..3]),
                Some('A') => out.push_str(day_name),
                Some('a') => out.push_str(&day_name[..3]),
                Some('j') => out.push_str(&format!("{:03}", days - first_day(year) + 1)),
                Some('H') => out.push_str(&format!("{hour:02}")),
                Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
                Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
                Some('M') => out.push_str(&format!("{minute:02}")),
                Some('S') => out.push_str(&format!("{second:02}")),
                Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
                Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
                Some('%') => out.push('%'),
                Some(other) => out.extend(['%', other]),
                None => out.push('%'),
            }
        }
        out
    }
}

/// Days since 1970-01-01 → year, month, day. Years begin in March, so that the leap day is the last of its year
/// (Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970-01-01 of January 1.
fn first_day(year: i64) -> i64 {
    let before = year - 1;
    365 * (year - 1970) + (before / 4 - before / 100 + before / 400) - 477
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_format_as_pythons_strftime_formats_them() {
        // python: datetime.fromtimestamp(t, UTC).strftime(...)
        let format = "%d %b %Y|%A %B %e|%y-%m-%d %H:%M:%S|%I %p|%j|%F %T|%%|%Q";
        assert_eq!(
            Moment(1_709_210_096).format(format),
            "29 Feb 2024|Thursday February 29|24-02-29 12:34:56|12 PM|060|2024-02-29 12:34:56|%|%Q"
        );
        assert_eq!(
            Moment(1_798_675_203).format("%d %b %Y %a %j %I %p"),
            "31 Dec 2026 Thu 365 12 AM"
        );
        assert_eq!(Moment(0).format("%F %a %j"), "1970-01-01 Thu 001");
    }
}
