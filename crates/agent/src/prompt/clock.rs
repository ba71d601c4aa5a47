//! Formats the current time for the model.

/// UTC to the minute, such as `2026-01-31 13:05 UTC`. Coarse, so that the status changes little between turns.
pub(crate) fn clock_text(now_ms: i64) -> String {
    let minutes = now_ms.div_euclid(60_000);
    let (days, minute) = (minutes.div_euclid(1440), minutes.rem_euclid(1440));
    let (year, month, day) = date_of(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minute / 60, minute % 60)
}

/// Converts days since 1970 to a date of the proleptic Gregorian calendar.
fn date_of(days: i64) -> (i64, i64, i64) {
    // Counting from 1 March of the year 0 makes the leap day the last day of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_right_on_odd_days() {
        assert_eq!(clock_text(0), "1970-01-01 00:00 UTC");
        assert_eq!(clock_text(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(clock_text(1_794_719_400_000), "2026-11-15 05:10 UTC");
    }
}
