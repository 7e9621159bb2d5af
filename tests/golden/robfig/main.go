// Prints the ticks that robfig/cron gives for the expressions on standard input, one on a line, as
// the controller of Kubeflow Pipelines computes them: go run . < expressions. The file robfig-ticks.json has its answers, one expression
// on a line.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"time"

	"github.com/robfig/cron"
)

const many = 6

func main() {
	answers := map[string]map[string][]string{}
	for _, zone := range []string{"UTC", "Europe/Berlin"} {
		answers[zone] = map[string][]string{}
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		for zone, found := range answers {
			location, _ := time.LoadLocation(zone)
			ticks := []string{}
			schedule, err := cron.Parse(lines.Text())
			at := time.Date(2026, 3, 27, 22, 15, 30, 0, time.UTC).In(location)
			for i := 0; err == nil && i < many; i++ {
				at = schedule.Next(at)
				if at.IsZero() {
					break
				}
				ticks = append(ticks, at.UTC().Format(time.RFC3339))
			}
			if err != nil {
				ticks = nil
			}
			found[lines.Text()] = ticks
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	out.Encode(answers)
}
