package quickstart

import (
	"encoding/json"
	"fmt"
)

// order is one order of a customer. All orders of a customer are one message
// group, numbered from 1 in the order in which they are committed.
type order struct{ group, n int }

// id returns the id of the order and of its outbox row: 13 characters.
func (o order) id() string { return fmt.Sprintf("%05d%08d", o.group, o.n) }

// customer returns the customer, which is also the message group.
func (o order) customer() string { return fmt.Sprintf("customer-%d", o.group) }

// cents returns the amount of the order. It varies, so that payloads differ.
func (o order) cents() int { return 500 + 7*o.group%100 + 13*o.n%10_000 }

// event is the payload of the order's outbox row.
type event struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Customer string `json:"customer"`
	Number   int    `json:"number"`
	Cents    int    `json:"amountCents"`
}

func (o order) payload() string {
	text, err := json.Marshal(event{ID: o.id(), Type: "order.created", Customer: o.customer(), Number: o.n, Cents: o.cents()})
	if err != nil {
		panic("quickstart: marshal order: " + err.Error())
	}
	return string(text)
}

// parseOrder returns the order of a payload. Any difference from the written payload
// is an error.
func parseOrder(payload []byte) (order, error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return order{}, fmt.Errorf("payload is not an order: %w", err)
	}
	var o order
	if _, err := fmt.Sscanf(e.ID, "%5d%8d", &o.group, &o.n); err != nil || string(payload) != o.payload() {
		return order{}, fmt.Errorf("payload differs from the written one: %s", payload)
	}
	return o, nil
}
