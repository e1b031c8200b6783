package plan

import (
	"fmt"

	"github.com/external-backend/operator/api/v1alpha1"
)

// ExplainTierChange says in a sentence why the tier after is active and the tier before no longer
// is. before is nil if none was active.
func ExplainTierChange(
	b *v1alpha1.ExternalBackend, override AppliedOverride, p *Publication, before *int32, after int32,
) string {
	f := failover(b)
	switch {
	case f.Pinned != nil:
		return override.pin() + " pins it."
	case before == nil:
		return p.describeCounts(after)
	}
	if t, _ := p.tier(*before); after < *before && f.qualifies(t) {
		return "It has qualified for failbackDelaySeconds."
	}
	return p.describeCounts(*before)
}

// explainTier says in sentences why the active tier is not the best one; "" if it is.
func (p *Publication) explainTier(b *v1alpha1.ExternalBackend, override AppliedOverride, active int32) string {
	f := failover(b)
	if f.Pinned != nil {
		return override.pin() + " pins it."
	}
	var sentences []string
	for _, t := range p.Tiers {
		switch {
		case t.Number >= active:
		case f.qualifies(t) && f.Manual:
			sentences = append(sentences,
				fmt.Sprintf("Tier %d qualifies again, and spec.failover.failback is Manual.", t.Number))
		case f.qualifies(t):
			sentences = append(sentences,
				fmt.Sprintf("Tier %d qualifies again, and waits for failbackDelaySeconds.", t.Number))
		default:
			sentences = append(sentences, p.describeCounts(t.Number))
		}
	}
	if more := len(sentences) - maxNamed; more > 0 {
		sentences = append(sentences[:maxNamed], fmt.Sprintf("%d more tiers don't qualify.", more))
	}
	return joinSentences(sentences...)
}

// describeCounts says how many endpoints of a tier are healthy.
func (p *Publication) describeCounts(number int32) string {
	t, ok := p.tier(number)
	if !ok {
		return fmt.Sprintf("Tier %d has no endpoints.", number)
	}
	return fmt.Sprintf("%d of %d endpoints of tier %d are healthy.", t.Healthy, t.Endpoints, number)
}

// tier returns the tier with that number, if there is one.
func (p *Publication) tier(number int32) (TierCount, bool) {
	for _, t := range p.Tiers {
		if t.Number == number {
			return t, true
		}
	}
	return TierCount{}, false
}
