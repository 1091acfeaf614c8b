// Decodes the objects of a chart strictly into the types of the Kubernetes API: an unknown field or a wrong type is an error.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	checked := 0
	for _, document := range strings.Split("\n"+string(text), "\n---") {
		var named struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &named); err != nil || named.Kind == "" || named.Kind == "ServiceMonitor" || named.Kind == "PrometheusRule" {
			if err != nil {
				fail(document, err)
			}
			continue
		}
		object, known := map[string]any{
			"StatefulSet": &apps.StatefulSet{}, "Service": &core.Service{}, "ConfigMap": &core.ConfigMap{},
			"Secret": &core.Secret{}, "NetworkPolicy": &networking.NetworkPolicy{},
			"PodDisruptionBudget": &policy.PodDisruptionBudget{},
		}[named.Kind]
		if !known {
			fail(document, fmt.Errorf("unknown kind %s", named.Kind))
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			fail(document, err)
		}
		checked++
	}
	fmt.Println(checked, "objects")
}

func fail(document string, err error) {
	fmt.Fprintln(os.Stderr, err, "in", strings.TrimSpace(document))
	os.Exit(1)
}
