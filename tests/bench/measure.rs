//! Figures and what they are compared with.

use serde::Serialize;

/// Least, median and greatest of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Self { min: sorted[0], median, max: sorted[sorted.len() - 1] }
    }
}

/// The figure below which this share of them lies.
pub fn percentile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted[at.saturating_sub(1).min(sorted.len() - 1)]
}

/// What was measured, round by round.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    pub name: String,
    pub rounds: Vec<f64>,
}

impl Series {
    pub fn new(name: impl Into<String>, rounds: Vec<f64>) -> Self {
        Self { name: name.into(), rounds }
    }

    pub fn spread(&self) -> Spread {
        Spread::of(&self.rounds)
    }
}

/// What a figure has to come to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Target {
    /// The ratio to the baseline.
    RatioAtLeast(f64),
    /// Likewise.
    RatioAtMost(f64),
    /// The figure itself.
    AtMost(f64),
    /// It only explains others.
    None,
}

/// One line of the table: a subject, its baseline in the same rounds, and the target.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub id: &'static str,
    pub what: String,
    pub unit: &'static str,
    pub subject: Series,
    pub baseline: Option<Series>,
    pub target: Target,
}

impl Figure {
    /// The subject by its baseline, round by round.
    pub fn ratios(&self) -> Option<Vec<f64>> {
        let baseline = self.baseline.as_ref()?;
        Some(self.subject.rounds.iter().zip(&baseline.rounds).map(|(subject, baseline)| subject / baseline).collect())
    }

    /// Whether the median meets the target; `None` where there is none.
    pub fn is_met(&self) -> Option<bool> {
        let ratio = self.ratios().map(|ratios| Spread::of(&ratios).median);
        match self.target {
            Target::RatioAtLeast(least) => ratio.map(|ratio| ratio >= least),
            Target::RatioAtMost(most) => ratio.map(|ratio| ratio <= most),
            Target::AtMost(most) => Some(self.subject.spread().median <= most),
            Target::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_least_median_and_greatest() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
    }

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let figures: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&figures, 0.5), percentile(&figures, 0.99)), (50.0, 99.0));
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn ratios_are_taken_round_by_round_and_held_against_the_target() {
        let figure = |target| Figure {
            id: "S0",
            what: String::new(),
            unit: "",
            subject: Series::new("s", vec![6.0, 10.0, 8.0]),
            baseline: Some(Series::new("b", vec![10.0, 10.0, 10.0])),
            target,
        };
        assert_eq!(figure(Target::None).ratios(), Some(vec![0.6, 1.0, 0.8]));
        assert_eq!(figure(Target::RatioAtLeast(0.8)).is_met(), Some(true));
        assert_eq!(figure(Target::RatioAtMost(0.7)).is_met(), Some(false));
        assert_eq!(figure(Target::AtMost(8.0)).is_met(), Some(true));
        assert_eq!(figure(Target::None).is_met(), None);
    }
}
